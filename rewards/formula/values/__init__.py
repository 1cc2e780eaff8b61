"""Values of syntax trees: exact values, values at many points, sets of numbers, and sympy."""
