"""Benchmarks of bookies: adds, reads, storage and journals, compared with Apache's bookie or the disk."""
