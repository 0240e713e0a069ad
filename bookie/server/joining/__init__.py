"""Joining the cluster: a check that disks and cookies belong to this bookie before it serves a request.

Not here: the registration node of a running bookie (``bookie.server.upkeep``).
Start with ``admission``.
"""
