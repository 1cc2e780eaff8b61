"""What an episode is: turns, tokens, states, records and failures, as data.

Not here: how one is played (``loop``) or scored (``scoring``).
"""
