"""Values of syntax trees: exact, at many points, as sets, and by sympy."""
