"""A snapshot that ZooKeeper wrote, as the source of ledger metadata: open it, verify it, find the ledgers in it.

Belongs here: the format of the file and what it contains, without Spark and without a connection. Does not belong here:
what a run makes of it (``spark_jobs.runs.snapshot_scan``). Start with ``index``.
"""
