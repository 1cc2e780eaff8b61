"""The multi-turn tasks of BFCL v3 (Berkeley function-calling leaderboard) over eight simulated APIs of our own.

What the published function documents leave open is decided so that the published paths make sense: prices, ids and
distances are those that later calls of a path use. Questions, paths and documents are read from files.
"""
