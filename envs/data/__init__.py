"""Read JSON files, rows of tasks from files and the Hugging Face hub, and marks of overlap with evaluation sets.

Each environment defines what a row means.
"""
