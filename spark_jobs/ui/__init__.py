"""The "Auditor" tab in the Spark UI. What runs audits does not belong here: the tab asks it through ``port.py``."""
