"""Play the multi-turn tasks of BFCL (Berkeley function-calling leaderboard) over the benchmark's own simulated APIs.

APIs, documents and tasks come from the package ``bfcl-eval``. Not covered: BFCL's other categories and model handlers.
"""
