"""Observations between runs: leaving and returning bookies, and the backlog of tasks.

Start with ``bookie_watch``.
"""
