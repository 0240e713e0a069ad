"""Ledger metadata: its paths, its encoding, the assignment of ids.

``ledgers`` reads and writes one ledger by compare-and-set, ``tree`` lists all of them, ``serde`` chooses the encoding.
Not here: what a ledger's metadata means (``bookie.model.metadata``).
Start with ``ledgers``.
"""
