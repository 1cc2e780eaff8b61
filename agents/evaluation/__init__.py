"""Evaluations, suites (lists of evaluations) and benchmarks over many episodes, and facts about the machine.

Not here: options and output of the commands (``commands``).
"""
