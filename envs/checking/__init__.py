"""Checks of an environment by playing it: conformance to the rules, and attacks on its rewards."""
