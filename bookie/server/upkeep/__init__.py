"""Background tasks of a running bookie: registration, garbage collection, disk space and drains.

Not here: serving requests (``bookie.server.service``).
"""
