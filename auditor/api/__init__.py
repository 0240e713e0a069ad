"""The service's APIs for other programs: HTTP with JSON, gRPC, and their access rules.

Does not belong here: what the service does (``auditor.service``), the tab in the Spark UI (``spark_jobs.ui``).
"""
