"""Copy entries from the bookies that have them to a target, within the throttle.

Not here: which entries and which target (``replicator.plan``).
Start with ``copier``.
"""
