"""The store of turns: retention, live turns, drafts, and its file.

Not here: loops over tokens (``kernels``).
"""
