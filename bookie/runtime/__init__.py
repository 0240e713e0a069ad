"""What every process needs from its environment: clock, settings, logs, metrics, guarded tasks, Java lookup.

Does not belong here: anything about ledgers on the network or on disk.
"""
