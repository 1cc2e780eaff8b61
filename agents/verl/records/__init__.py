"""What a training writes while it goes on: episodes, metrics, step reports, lost steps.

Not here: reading them for people (``viewer``).
"""
