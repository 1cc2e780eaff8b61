"""Sampling of turntree's requests inside SGLang, and the differences between SGLang's versions.

Not here: drafts and their verification (``worker``).
"""
