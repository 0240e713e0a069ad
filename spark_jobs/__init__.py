"""Audit checks as DataFrame pipelines, their data sources and sinks. The only importer of pyspark.

Does not belong here: copying data, talking to bookies.
"""
