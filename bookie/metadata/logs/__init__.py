"""Logs that span several ledgers: the list of ledgers of each log and how it is changed.

Not here: appending to a log and reading it (``bookie.client.log``).
Start with ``log_store``.
"""
