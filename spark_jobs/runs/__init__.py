"""One audit run: read the cluster, scan all ledgers, check, publish tasks, summarize.

``run`` is the entry; ``bookie_run``, ``placement_run``, ``replica_run`` and ``reference_run`` are the kinds of checks.
Not here: the checks as DataFrame functions (``spark_jobs.checks``); the report (``spark_jobs.report``).
Start with ``run``.
"""
