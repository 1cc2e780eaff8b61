"""Comparison of an answer with the gold answer by meaning: types, units, equations, options.

Not here: finding the answer in a text (``reading``) and the processes that compare (``isolation``).
"""
