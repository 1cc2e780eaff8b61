"""Extraction of the answer to which a text commits, and of signs of reward hacking."""
