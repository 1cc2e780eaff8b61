"""Environments whose tools look things up: in a key-value store, and in a corpus of texts."""
