"""Find out which entries each bookie of a ledger has, and keep the evidence.

Not here: what follows from it (``replicator.plan``).
Start with ``holdings``.
"""
