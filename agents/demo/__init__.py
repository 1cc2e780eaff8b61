"""``make demo``: a small policy that learns on the CPU, and what speculation saved. A model to try other
things with, from a package.

Not here: the page of the run (``viewer``).
"""
