"""Conformance checks that play an environment and report broken rules.

Not here: the form of a tool call (``tools``).
"""
