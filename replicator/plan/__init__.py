"""Decide how to repair a ledger: pure functions from metadata and knowledge about copies to a plan.

``planner`` and ``moves`` decide; ``target_choice`` chooses targets, ``steps`` defines the parts of a plan, and
``installable`` decides which of them may change the metadata after the copies. Not here: any I/O.
Start with ``planner``.
"""
