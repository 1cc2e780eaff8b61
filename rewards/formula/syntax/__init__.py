"""Formulas as syntax trees: tokens, parsers, traversal."""
