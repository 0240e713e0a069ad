"""Copy entries from their holders to their targets, within the throttle.

Not here: which entries and which target (``replicator.plan``).
Start with ``copier``.
"""
