"""Playing of episodes in verl's rollout workers: manager, player, and precomputed episodes.

The servers that sample are in ``serving``.
"""
