"""What a question asks for, and answers that only repeat the question."""
