"""Tools: their schemas, argument checks, tools that share state, and the calls of a turn.

Not here: how calls are written in text (``parsers``) or run (``running``).
"""
