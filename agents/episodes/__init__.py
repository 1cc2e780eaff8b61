"""The data of an episode: turns, tokens, states, records and failures.

Not here: how an episode is played (``loop``) or scored (``scoring``).
"""
