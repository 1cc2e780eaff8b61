"""Rows of tasks read from files and the hub, and what they must not share.

Not here: what a row means, which each environment says.
"""
