"""The "Auditor" tab in the Spark UI. Running audits does not belong here: the tab requests it through ``port.py``."""
