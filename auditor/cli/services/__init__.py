"""Commands that start a process: ``bkheal auditor``, ``bookie``, ``replicator``."""
