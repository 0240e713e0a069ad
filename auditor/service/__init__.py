"""The long-lived auditor: election, schedules, lost bookies, runs, and all that shows or starts them.

Does not belong here: what a check does (``spark_jobs``), copying (``replicator``).
"""
