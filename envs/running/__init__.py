"""Execution of tool calls (threads, deadlines, cached results) and snapshots of running episodes."""
