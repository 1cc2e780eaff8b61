"""Statistics of many episodes: evaluations, suites, ``turntree bench``, and the machine they ran on.

Not here: options and output of the commands (``commands``).
"""
