"""The interface for Apache BookKeeper's TCP protocol, versions 3 and 2, on the same storage as gRPC."""
