"""Finished turns told to other stores, through a folder or whatever an ``Exchange`` is made of.

Not here: Ray (``agents.verl.serving.hub``).
"""
