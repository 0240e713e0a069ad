"""Operators' requests to a running bookie: its state, its ledgers, scrubs, garbage collections, the read-only mode.

``node`` executes them, ``servicer`` is the gRPC interface with the access rules.
"""
