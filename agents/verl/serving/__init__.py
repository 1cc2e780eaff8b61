"""The replicas that sample for verl: servers, weights, the broker between them, restarts, checkpoints.

Not here: the engines themselves (``engines``).
"""
