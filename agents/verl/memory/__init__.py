"""Estimate a training's GPU memory before anything starts.

Not here: measurements. No figure is fitted to a device; ``phases`` names the assumed constants.
"""
