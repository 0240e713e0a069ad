"""Runs of the service: schedule, start, cancel and record them, one at a time.

Start with ``manager``.
"""
