"""Worker processes that compare answers, so that no answer can affect the trainer."""
