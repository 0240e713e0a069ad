"""Logs spanning several ledgers: the list of ledgers of each log and its changes.

Not here: appending to a log and reading it (``bookie.client.log``).
Start with ``log_store``.
"""
