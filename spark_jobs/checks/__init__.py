"""Checks: pure functions from DataFrames to DataFrames of findings.

Reading metadata, publishing and files do not belong here.
"""
