"""Engines, which sample turns: their protocol and its implementations."""
