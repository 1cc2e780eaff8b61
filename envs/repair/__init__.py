"""Environment in which the policy repairs a fault in a small program, with a shell in the sandbox."""
