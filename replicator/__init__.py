"""Repair: choose a task, plan, copy exactly the missing entries, swap the ensemble, delete the task.

Not here: finding missing entries (``spark_jobs``).
"""
