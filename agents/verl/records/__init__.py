"""Records of a training while it runs: episodes, metrics, step reports, failed steps.

Not here: showing them to people (``viewer``).
"""
