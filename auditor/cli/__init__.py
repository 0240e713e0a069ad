"""Commands of ``bkheal``: reading options, calling the packages below, printing results.

Does not belong here: anything a test would want to call without a terminal.
"""
