"""Checks: pure functions from DataFrames to DataFrames of findings.

Does not belong here: reading metadata, publishing, files.
"""
