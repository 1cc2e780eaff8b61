"""Tasks without end: each is made from its index and split alone, the same in every process."""
