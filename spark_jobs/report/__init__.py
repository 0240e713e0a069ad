"""The report of a run: its summary, its files, its history and the comparison of two reports.

Not here: the HTML page (``spark_jobs.report.page``).
Start with ``summary``.
"""
