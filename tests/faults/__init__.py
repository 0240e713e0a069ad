"""A whole service of real processes under random faults, with writers and readers.

``processes`` pauses, kills and replaces the processes. ``network`` disturbs their connections, ``disks`` fills and
unmounts their disks, and ``damage`` changes the files of a bookie; ``healing`` verifies the bookie afterwards.
``workload`` writes, reads, recovers and deletes ledgers. ``verdict`` checks the outcome: no acknowledged entry is lost,
each ledger has all its copies, and no mark, lock or reservation is left. ``python -m tests.faults`` runs all of it.
"""
