"""The bookie process: request handling, gRPC servicer, registration, life cycle.

Does not belong here: file formats (``bookie.storage``), client-side protocol.
"""
