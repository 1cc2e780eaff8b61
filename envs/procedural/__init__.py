"""Generated tasks without end: each follows from its index and split alone, the same in every process."""
