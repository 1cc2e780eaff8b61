"""The data of an episode: turns, tokens, states, records and failures.

Not here: how one is played (``loop``) or scored (``scoring``).
"""
