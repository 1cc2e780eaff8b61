"""Worker processes that compare answers, so that no answer can affect the trainer.

Not here: the comparison itself (``formula``).
"""
