"""Draft sharing between replicas: finished turns are sent to and received from other draft stores.

The transport by Ray is in ``agents.verl.serving.turn_broker``.
"""
