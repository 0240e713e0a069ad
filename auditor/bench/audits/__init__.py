"""Benchmarks of audits: scans, kinds of checks, the image, executors, and the cost for other clients of ZooKeeper."""
