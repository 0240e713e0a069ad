"""Copy entries from the bookies that have them to their targets, within the limits on copying.

Not here: which entries and which target (``replicator.plan``).
Start with ``copier``.
"""
