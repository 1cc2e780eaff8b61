"""Extraction of the answer that a text gives as final, and detection of signs of reward hacking."""
