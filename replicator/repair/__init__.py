"""Repair one locked ledger: look, plan, reserve, copy, install, look again.

``ledger_repair`` runs the rounds; the other modules are its steps.
Start with ``ledger_repair``.
"""
