"""Write a ledger: pipeline, acknowledgement, ensemble change and close.

``writer`` is the interface; ``state``, the pure core, decides which entries are confirmed.
Not here: closing a ledger of another process (``bookie.client.recovery``).
Start with ``writer``.
"""
