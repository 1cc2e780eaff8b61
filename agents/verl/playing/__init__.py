"""Playing of episodes in verl's rollout workers: manager, player, and precomputed episodes.

Not here: the servers that sample (``serving``).
"""
