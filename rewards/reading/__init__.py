"""Extraction of the answer that a text commits to, and of signs of hacking.

Not here: the meaning of a formula (``formula``).
"""
