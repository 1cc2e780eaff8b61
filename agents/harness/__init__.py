"""Existing agent programs as episodes: how they run, and the gateway through which they call the policy.

Not here: the gateway itself (``gateway``), and the training rows of an episode (``verl/episodes``).
"""
