"""The replicas that sample for verl: servers, weights, the broker between them, restarts, checkpoints.

The engines themselves are in ``engines``.
"""
