"""The client side of bkheal's own protocol: the transport port and the administration over gRPC."""
