"""What operators ask of a running bookie: its state, its ledgers, scrubs, garbage collections, the read-only mode.

``node`` does it, ``servicer`` is the gRPC face with the access rules.
"""
