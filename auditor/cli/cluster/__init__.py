"""Commands about the cluster: status, bookies, drains, recovery and dead letters.

``changing`` holds what the commands that change something share: confirmation and output.
"""
