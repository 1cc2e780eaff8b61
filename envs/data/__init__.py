"""Files of JSON, rows of tasks from files and the Hugging Face hub, and overlap with evaluation sets.

Not here: the meaning of a row, which each environment defines.
"""
