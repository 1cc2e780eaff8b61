"""Rewards of finished episodes and of texts in files.

Not here: how an answer is compared (``turntree.rewards``).
"""
