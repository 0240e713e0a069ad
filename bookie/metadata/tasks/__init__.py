"""Repair tasks: Apache's under-replication nodes and locks, and our own parked tasks and reservations.

``underreplication`` is the whole interface; ``marking``, ``locks`` and ``format`` are its parts.
Not here: which task to take next (``replicator.queue``).
Start with ``underreplication``.
"""
