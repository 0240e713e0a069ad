"""The service's faces to other programs: HTTP with JSON, gRPC, and the rules of who may do what on either.

Does not belong here: what the service does (``auditor.service``), the tab in the Spark UI (``spark_jobs.ui``).
"""
