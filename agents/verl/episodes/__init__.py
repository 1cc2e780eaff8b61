"""Conversion of episodes to verl's data: rows of the data set in, rows with masks and rewards out.

Not here: playing them (``playing``).
"""
