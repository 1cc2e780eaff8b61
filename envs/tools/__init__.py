"""Tools: schemas, argument checks, toolsets and tool messages. ``parsers`` reads calls, ``running`` runs the calls."""
