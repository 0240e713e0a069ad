"""Pure values and arithmetic of ledgers.

Belongs here: what can be computed from its arguments alone. Does not belong here: I/O, clocks, randomness, logging.
"""
