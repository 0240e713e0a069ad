"""The service's APIs for other programs: HTTP with JSON, gRPC, and the access rules of both.

Does not belong here: what the service does (``auditor.service``), the tab in the Spark UI (``spark_jobs.ui``).
"""
