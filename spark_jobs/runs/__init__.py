"""One audit run: read the cluster, scan all ledgers, check, publish tasks, summarize.

``run`` is the entry; ``bookie_run``, ``placement_run`` and ``replica_run`` are the three kinds of checks.
Not here: the checks as DataFrame functions (``spark_jobs.checks``); the report (``spark_jobs.report``).
Start with ``run``.
"""
