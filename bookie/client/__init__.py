"""The ledger client: writer, reader, ensemble change, placement.

Does not belong here: concrete transports or stores; these are handed in.
"""
