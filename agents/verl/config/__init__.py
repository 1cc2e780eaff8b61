"""Composition and checks of verl's whole configuration, with turntree's sections in it, from options and YAML.

Not here: starting anything.
"""
