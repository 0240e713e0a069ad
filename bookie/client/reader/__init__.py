"""Read a ledger, closed or still open.

``reader`` is the interface, ``replicas`` chooses the bookies to ask,
``last_add_confirmed`` finds the end of an open ledger.
Start with ``reader``.
"""
