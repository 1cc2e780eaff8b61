"""Numba kernels over flat arrays: look up, weigh and grow drafts, and learn from verified tokens."""
