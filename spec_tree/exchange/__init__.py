"""Exchange of finished turns with other stores, through an ``Exchange``.

Not here: Ray (``agents.verl.serving.hub``).
"""
