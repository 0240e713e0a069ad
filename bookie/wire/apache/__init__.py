"""Apache BookKeeper's bookie protocol over TCP: frames, messages, version 2, handshakes, and a client's transport.

Not here: what a bookie answers (``bookie.server.apache``), and gRPC.
"""
