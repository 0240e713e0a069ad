"""Commands of ``bkheal``: they read options, call the packages below, and print results.

``changing`` has the common parts of the commands that change something: confirmation and output.

Does not belong here: code that a test needs to call without a terminal.
"""
