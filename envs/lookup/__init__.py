"""Environments whose tools look things up: a store of values, a corpus of texts."""
