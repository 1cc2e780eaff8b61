"""The gateway's side of HTTP: bodies and refusals, bounds of a request, streams of events, the server.

Not here: what is done with a request (``gateway``). Nothing here knows an engine.
"""
