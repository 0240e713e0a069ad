"""The kinds of runs: ``bookie_run``, ``placement_run``, ``replica_run`` and ``reference_run``.

A run of everything is a bookie run with further checks of the same ledgers (``further_checks``, ``everything``).
"""
