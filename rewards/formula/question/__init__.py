"""Detection of what a question asks for, and of answers that only repeat the question."""
