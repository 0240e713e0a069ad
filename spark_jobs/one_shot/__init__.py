"""An audit as a single process: command line, run lock, heartbeat, exit code.

Not here: scheduled runs (``auditor.service``); the audit itself (``spark_jobs.runs``).
Start with ``run``.
"""
