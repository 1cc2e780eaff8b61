"""Constants of SplitMix64 (Steele, Lea and Flood 2014), used for noise and hashes."""

GOLDEN = 0x9E3779B97F4A7C15  #: increment of the counter: 2**64 divided by the golden ratio, made odd
#: factors of the two multiplications of the mixing function
FIRST = 0xBF58476D1CE4E5B9
SECOND = 0x94D049BB133111EB
