"""Records of a training: episodes, metrics, step reports, failed steps, the replicas' parts of checkpoints.

``viewer`` displays them.
"""
