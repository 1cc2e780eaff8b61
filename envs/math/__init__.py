"""Mathematics: problems from data sets in one environment (``env``), listed in one table (``sets``)."""
