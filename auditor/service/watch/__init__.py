"""What the service observes between runs: bookies that leave or return, and the backlog of tasks.

Start with ``bookie_watch``.
"""
