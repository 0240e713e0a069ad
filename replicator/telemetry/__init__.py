"""The telemetry of a worker: events, status and metrics.

Not here: the metrics of the auditor (``auditor.metrics``).
"""
