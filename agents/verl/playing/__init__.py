"""Playing of episodes in verl's rollout workers: agent loop, manager, and precomputed episodes.

Not here: the servers that sample (``serving``).
"""
