"""Repair: choose a task, plan, copy exactly the missing entries, replace members in the metadata, delete the task.

Not here: finding missing entries (``spark_jobs``).
"""
