"""Snapshots that ZooKeeper wrote, as a source of ledger metadata: open one, verify it, and find the ledgers in it.

Belongs here: the format of the file and its content, without Spark and without a connection. Does not belong here: its
use in a run (``spark_jobs.runs.reading.snapshot_reading``). Start with ``index``.
"""
