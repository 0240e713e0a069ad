"""The ``bkheal`` command line and, on top of every other package, the operator's view of the system.

Does not belong here: audit checks (``spark_jobs``), copying (``replicator``).
"""
