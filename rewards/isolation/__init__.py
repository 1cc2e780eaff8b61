"""Processes in which answers are compared, so that nothing an answer does reaches the trainer.

Not here: the comparison itself (``formula``).
"""
