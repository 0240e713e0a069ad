"""Operators' actions on a cluster, as functions over a client that return documents.

Commands call them on a session of their own, and the API on a session of the service, so both do and show the same.
Each function that changes something first writes a record of the change (``bookie.metadata.tasks.changes``).

Does not belong here: prompts, tables and exit codes (``auditor.cli``), requests and statuses (``auditor.api.http``).
Start with ``client``.
"""
