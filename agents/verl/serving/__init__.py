"""The replicas that sample for verl: servers, weights, the hub between them, restarts, checkpoints.

Not here: the engines themselves (``engines``).
"""
