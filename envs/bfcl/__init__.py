"""The multi-turn tasks of BFCL (Berkeley function-calling leaderboard) over the benchmark's own simulated APIs.

APIs, documents and tasks are those of the package ``bfcl-eval``. Not here: its other categories, its model handlers.
"""
