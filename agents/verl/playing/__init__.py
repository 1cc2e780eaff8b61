"""Episodes played in verl's rollout workers: agent loop, manager, and what is played ahead.

Not here: the servers that sample (``serving``).
"""
