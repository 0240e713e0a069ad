"""``bkheal exporter``: the metrics of a cluster without a leading bkheal auditor."""
