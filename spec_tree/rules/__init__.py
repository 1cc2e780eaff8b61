"""Acceptance of drafted tokens: acceptance rules, noise, levels, monitors, the ledger.

Not here: how drafts are made (``store``, ``kernels``).
"""
