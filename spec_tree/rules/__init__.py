"""Acceptance of drafted tokens: rules, noise, exactness levels, monitors, the ledger of stored turns."""
