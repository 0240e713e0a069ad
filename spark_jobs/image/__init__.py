"""The image: a table of ledger metadata with an index from bookies to ledgers, kept in files next to the reports
or in a store.

It names the ledgers to read first after the loss of a bookie, and decides nothing (R100).
"""
