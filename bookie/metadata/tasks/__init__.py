"""Repair tasks: Apache's under-replication nodes and locks, and bkheal's own parked tasks and reservations.

``underreplication`` reads the tree of tasks; its ``marking``, ``locks`` and ``switches`` change it.
Not here: which task to take next (``replicator.queue``).
Start with ``underreplication``.
"""
