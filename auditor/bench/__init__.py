"""Benchmarks: each prints ratios against a named baseline measured in the same run.

Does not belong here: tests, and numbers without a baseline.
"""
