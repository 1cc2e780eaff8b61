"""Tools: schemas, argument checks, toolsets, and the tool calls of a turn. ``parsers`` reads calls, ``running`` runs them."""
