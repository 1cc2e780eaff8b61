"""Run existing agent programs as episodes; the programs call the policy through a gateway.

Not here: the gateway itself (``gateway``), and the training rows of an episode (``verl/episodes``).
"""
