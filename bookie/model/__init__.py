"""Pure values and arithmetic of ledgers.

Here: functions of their arguments alone. Not here: I/O, clocks, randomness, logging.
"""
