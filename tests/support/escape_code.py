"""Code that tries to get out of a sandbox."""

from tables import table

ORPHAN: str = table(__file__, "orphan")
CHANNEL: str = table(__file__, "channel")
