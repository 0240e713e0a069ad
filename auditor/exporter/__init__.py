"""``bkheal exporter``: the metrics of a cluster that no bkheal auditor leads."""
