"""The store beside the public drafters: recorded turns, how they are replayed, and what is measured of it."""
