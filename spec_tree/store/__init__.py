"""The draft store: retention of turns, live turns, drafts and the file format."""
