"""Ledger metadata: where the nodes are, how they are encoded, how ids are assigned.

``ledgers`` reads and writes one ledger by compare-and-set, ``tree`` lists all of them, ``serde`` chooses the encoding.
Not here: what a ledger's metadata means (``bookie.model.metadata``).
Start with ``ledgers``.
"""
