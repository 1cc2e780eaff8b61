"""Sampling inside vLLM's workers with turntree's noise."""
