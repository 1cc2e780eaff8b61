"""From options and YAML to verl's whole configuration, and turntree's sections in it, checked.

Not here: starting anything.
"""
