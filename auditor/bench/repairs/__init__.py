"""Benchmarks of repair: one replicator on one machine, and a whole cluster that loses two bookies."""
