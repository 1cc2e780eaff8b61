"""Worker processes that compare answers, so that no answer can crash or block the trainer."""
