"""Commands of ``bkheal``: they read options, call the packages below, and print results.

Does not belong here: code that a test needs to call without a terminal.
"""
