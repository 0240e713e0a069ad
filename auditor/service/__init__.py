"""The long-lived auditor: election, schedules, lost bookies, runs, and everything to show or start them.

Does not belong here: what a check does (``spark_jobs``), copying (``replicator``).
"""
