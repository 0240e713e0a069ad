"""Write a ledger: pipeline, acknowledgement, ensemble change and close.

``writer`` is the interface, ``state`` the pure core that decides which entries are confirmed.
Not here: closing a ledger that another process wrote (``bookie.client.recovery``).
Start with ``writer``.
"""
