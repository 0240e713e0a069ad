"""Decide how to repair a ledger: pure functions from metadata and knowledge about copies to a plan.

``planner`` decides; ``steps`` defines the parts of a plan. Not here: any I/O.
Start with ``planner``.
"""
