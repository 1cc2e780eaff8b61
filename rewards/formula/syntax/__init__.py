"""Formulas as syntax trees: tokens, terms, commands, and traversal.

Not here: the value of a tree (``values``).
"""
