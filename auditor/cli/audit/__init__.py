"""``bkheal audit``, ``report`` and the commands that follow runs of a service.

Start with ``command``.
"""
