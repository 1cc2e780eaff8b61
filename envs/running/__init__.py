"""Execution of tool calls: threads, deadlines, cached results, time.

Not here: what a tool is (``tools``).
"""
