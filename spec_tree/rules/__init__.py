"""Which tokens stay and what follows them: acceptance rules, noise, levels, monitors, the ledger.

Not here: how drafts are made (``store``, ``kernels``).
"""
