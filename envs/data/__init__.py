"""Read JSON files, and rows of tasks from files and the Hugging Face hub.

Each environment defines the columns that its rows need.
"""
