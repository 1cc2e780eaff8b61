"""The number of nodes that a step drafts, learnt from the cost of steps and the acceptance of drafts.

Not here: the choice of nodes (``kernels``).
"""
