"""The gRPC server of a bookie, which decodes requests, calls the service and encodes responses.

Not here: Apache's protocol (``bookie.server.apache``); what a request does (``bookie.server.service``).
"""
