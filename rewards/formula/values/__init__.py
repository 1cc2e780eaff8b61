"""Values of syntax trees: exact, at many points, as sets, and finally by sympy.

Not here: the choice of the comparison (``formula``).
"""
