"""The Grafana dashboards as data: ``model`` has the parts, ``boards`` all of them."""
