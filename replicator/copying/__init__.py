"""Copy entries from the bookies that have them to their targets, within the limits on copying.

Not here: which entries and which target (``replicator.plan``).
Start with ``copier`` for the rules, then ``copy_run`` for the steps of one copy.
"""
