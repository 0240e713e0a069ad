"""The long-lived auditor: election, schedules, lost bookies, runs, and the APIs that show and start them.

Does not belong here: what a check does (``spark_jobs``), copying (``replicator``).
"""
