"""The options of audits, the same for a one-shot run and for the service: names, help, limits and defaults.

Importable without Spark. ``spark_jobs.settings`` and ``auditor.service.settings`` put them together.
"""
