"""The answer that a text commits to, and what is suspicious about it.

Not here: what a formula means (``formula``).
"""
