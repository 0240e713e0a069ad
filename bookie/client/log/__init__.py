"""A log over many ledgers: append, read, trim, take over from another writer.

Not here: how the list of ledgers is stored (``bookie.metadata.logs``).
Start with ``log``.
"""
