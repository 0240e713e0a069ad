"""Audit runs: their records, the lock for one run at a time, the leader election and Apache's check times.

Not here: what a run does (``spark_jobs``).
Start with ``records``.
"""
