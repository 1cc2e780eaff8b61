"""Compiled loops over flat arrays: finding, weighing, growing, learning.

Not here: which turns exist and how long they stay (``store``).
"""
