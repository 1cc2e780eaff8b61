"""Environments with lookup tools: a store of values, a corpus of texts."""
