"""What a worker reports about itself: events, status and metrics.

Not here: the metrics of the auditor (``auditor.metrics``).
"""
