"""Values of syntax trees: exact, at many points, as sets, and by sympy at last.

Not here: which comparison a question asks for (``formula``).
"""
