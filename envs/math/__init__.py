"""Mathematics: ``env`` plays problems from the data sets in ``sets``; ``arithmetic`` generates tasks."""
