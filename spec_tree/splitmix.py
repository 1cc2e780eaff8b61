"""Constants of SplitMix64 (Steele, Lea and Flood 2014), of which noise and hashes are made."""

GOLDEN = 0x9E3779B97F4A7C15
"""The step of its counter: 2**64 divided by the golden ratio, odd."""
FIRST = 0xBF58476D1CE4E5B9
"""The first factor of its mixing."""
SECOND = 0x94D049BB133111EB
"""The second one."""
