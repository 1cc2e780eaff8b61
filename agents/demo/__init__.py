"""``make demo``: train a small policy on the CPU and show what speculation saves. Also a small model from PyPI.

Not here: the page of the run (``viewer``).
"""
