"""The service, the APIs and the command line of ``bkheal``, on top of all other packages.

Does not belong here: audit checks (``spark_jobs``), copying (``replicator``).
"""
