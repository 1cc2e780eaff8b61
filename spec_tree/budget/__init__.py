"""How many nodes a step drafts, learnt from what steps cost and what came true.

Not here: which nodes (``kernels``).
"""
