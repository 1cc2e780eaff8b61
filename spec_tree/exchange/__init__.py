"""Exchange of finished turns with other stores, through a folder or another ``Exchange``.

Not here: Ray (``agents.verl.serving.hub``).
"""
