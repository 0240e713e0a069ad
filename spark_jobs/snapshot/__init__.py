"""A snapshot written by ZooKeeper, as the source of ledger metadata: open it, verify it, find the ledgers in it.

Belongs here: the format of the file and its content, without Spark and without a connection. Does not belong here: its
use in a run (``spark_jobs.runs.snapshot_scan``). Start with ``index``.
"""
