"""The store of turns: which are kept, which are live, what is drafted, and its file.

Not here: loops over tokens (``kernels``).
"""
