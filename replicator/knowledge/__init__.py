"""Determine which entries each bookie of a ledger has, and keep the evidence.

Not here: decisions based on it (``replicator.plan``).
Start with ``holdings``.
"""
