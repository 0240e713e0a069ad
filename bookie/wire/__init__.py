"""Requests to bookies: the transport port, requests and replies as values, adapters, message definitions.

Not here: what a client does with an answer.
"""
