"""Operators' actions on a cluster, as functions over a client: a document for each answer.

Commands call them on a session of their own, the API on one of the service, so both do and show the same. Each function
that changes something writes its record first (``bookie.metadata.tasks.changes``).

Not here: questions, tables and exit codes (``auditor.cli``); requests and statuses (``auditor.api.http``).
Start with ``client``.
"""
