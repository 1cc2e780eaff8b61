"""What a tool is: its schema, its checked arguments, tools that share state, and a turn's calls.

Not here: how calls are written in text (``parsers``) or run (``running``).
"""
