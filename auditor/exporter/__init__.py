"""``bkheal exporter``: the metrics of a cluster that no auditor of bkheal leads."""
