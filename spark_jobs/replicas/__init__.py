"""The replicas check without Spark: what bookies should hold, asking them, and the verdict.

Does not belong here: DataFrames, reports, publishing.
"""
