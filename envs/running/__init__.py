"""Execution of tool calls: threads, deadlines, cached results, time; snapshots of a running episode.

Not here: what a tool is (``tools``).
"""
