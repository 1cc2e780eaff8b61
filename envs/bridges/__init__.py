"""Environments of other libraries as ours, and ours as theirs.

Each module stands alone and imports its library only when it is used.
"""
