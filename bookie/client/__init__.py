"""The ledger client: writer, reader, ensemble change, placement.

Not here: concrete transports and stores, which the caller passes in.
"""
