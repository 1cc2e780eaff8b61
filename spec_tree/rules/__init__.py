"""Acceptance of drafted tokens: acceptance rules, noise, exactness levels, monitors, the turn ledger."""
