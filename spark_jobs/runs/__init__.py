"""One audit run: read the cluster, scan all ledgers, check, mark, and write the report. Start with ``run``.

``kinds`` has one module for each kind of run, ``reading`` the ways to read the metadata of all ledgers, and ``marking``
the rules for marks and their withdrawal. The modules beside them are the frame of every run: its context, gate,
record, view of the cluster, Spark jobs, findings and report.

Not here: the checks as DataFrame functions (``spark_jobs.checks``); the pages and tables of the report
(``spark_jobs.report``).
"""
