"""Commands about the cluster: status, bookies, recovery, limits and dead letters."""
