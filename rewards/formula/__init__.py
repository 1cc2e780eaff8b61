"""Comparison of an answer with the gold answer by meaning: types, units, equations, options."""
