"""Mathematics: problems from data sets, all in one environment (``env``), listed in one table (``sets``)."""
