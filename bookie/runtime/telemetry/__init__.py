"""Metrics, probes and the small HTTP server for them, in every process.

Start with ``telemetry``.
"""
