"""A real bookie process for many minutes: writes, reads, deletions with collection and compaction, and restarts.

``workload`` does the work of clients and compares every read entry with the acknowledged one. ``command`` starts the
bookie, ends it with SIGKILL and SIGTERM in turn, and measures its memory, file handles and disk. ``judgement`` decides
whether these grow, in pure functions. ``python -m tests.soak`` runs all of it.
"""
