"""What every process needs around its work: clock, settings, logs, metrics, guarded tasks, Java lookup.

Does not belong here: anything that knows about ledgers on the network or on disk.
"""
