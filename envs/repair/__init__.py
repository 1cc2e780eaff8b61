"""Repair the fault of a small program, with a shell in the sandbox."""
