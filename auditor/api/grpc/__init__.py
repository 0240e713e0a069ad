"""The gRPC API: the same operations as the HTTP API.

Start with ``servicer``.
"""
