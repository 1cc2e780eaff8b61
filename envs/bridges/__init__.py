"""Adapters: environments of other libraries as turntree environments, and the reverse.

Each module stands alone and imports its library only when it is used.
"""
