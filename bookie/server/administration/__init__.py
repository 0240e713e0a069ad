"""Requests of operators to a running bookie: state, ledgers, scrubs, garbage collections, the read-only mode.

``node`` executes them, ``servicer`` is the gRPC interface with the access rules.
"""
