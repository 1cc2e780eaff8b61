from tables import table

ORPHAN: str = table(__file__, "orphan")
CHANNEL: str = table(__file__, "channel")
