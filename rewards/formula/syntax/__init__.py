"""Formulas as syntax trees: tokens, terms, commands, and walks over them.

Not here: what a tree is worth (``values``).
"""
