"""Prometheus metrics of the auditor: definitions, export, and the catalogue of every metric of bkheal.

Start with ``definitions``.
"""
