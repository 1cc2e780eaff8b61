"""Evaluations, suites and benchmarks over many episodes, and the machine they ran on.

Not here: options and output of the commands (``commands``).
"""
