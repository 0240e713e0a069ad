"""Commands about the cluster: status, bookies, drains, recovery and dead letters.

``changing`` has the common parts of the commands that change something: confirmation and output.
"""
