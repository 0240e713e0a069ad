"""Metrics, probes and the small HTTP server that serves them, in every process.

Start with ``telemetry``.
"""
