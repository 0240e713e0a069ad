"""Another interface of a bookie: Apache BookKeeper's TCP protocol, versions 3 and 2, over the same storage as gRPC."""
