"""The ways to use earlier rollouts, for ``reuse.py``."""
