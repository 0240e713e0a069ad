"""Cluster metadata as Spark tables: the Python data sources ``bk_ledgers``, ``bk_bookies`` and ``bk_tasks``.

Belongs here: how rows are planned, read and decoded. Does not belong here: what the rows mean.
"""
