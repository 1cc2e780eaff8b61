"""Exchange of finished turns with other stores, through an ``TurnSharing``.

Not here: Ray (``agents.verl.serving.turn_broker``).
"""
