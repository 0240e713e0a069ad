"""``bkheal audit``, ``bkheal report`` and the commands about runs of a service.

Start with ``command``.
"""
