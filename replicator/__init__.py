"""Repair: choose a task, plan, copy exactly what is missing, swap the ensemble, delete the task.

Does not belong here: finding what is missing (``spark_jobs``).
"""
