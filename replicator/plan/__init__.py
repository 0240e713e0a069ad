"""Decide how to repair a ledger. Pure: metadata and knowledge about copies in, a plan out.

``planner`` decides, ``steps`` are the values that a plan consists of. Not here: any I/O.
Start with ``planner``.
"""
