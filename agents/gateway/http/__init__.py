"""HTTP for the gateway: request bodies and refusals, limits, event streams, the server. Independent of engines.

Not here: the handling of a request (``gateway``).
"""
