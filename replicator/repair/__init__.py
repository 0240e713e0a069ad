"""Repair one locked ledger: inspect it, plan, reserve, copy, install, and inspect it again.

``ledger_repair`` runs the rounds; the other modules are its steps.
Start with ``ledger_repair``.
"""
