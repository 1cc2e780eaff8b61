"""Engines, which sample turns: their protocol and the implementations.

Not here: how an episode is played (``loop``) and how earlier turns are reused (``reuse``).
"""
