"""What the store holds about bookies: registrations, cookies, incarnations, drains and topology.

Not here: how a bookie process registers itself (``bookie.server``).
Start with ``registration``.
"""
