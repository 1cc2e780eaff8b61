"""What samples a turn: the protocol of engines, and the engines behind it.

Not here: how an episode is played (``loop``) and how earlier turns are used again (``reuse``).
"""
