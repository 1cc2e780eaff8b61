"""Exact distributions of what each rule gives, and the rows of ``exactness.py``."""
