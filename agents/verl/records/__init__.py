"""Records of a training: episodes, metrics, step reports, failed steps, the replicas' parts of checkpoints.

Not here: showing them to people (``viewer``).
"""
