"""Programs of somebody else as episodes: what runs them, and the gateway through which they ask the policy.

Not here: the gateway itself (``gateway``), and the rows that a trainer makes of an episode (``verl/episodes``).
"""
