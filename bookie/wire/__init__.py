"""How a process talks to a bookie: the transport port, requests and replies as values, adapters, message definitions.

Does not belong here: what a client does with an answer.
"""
