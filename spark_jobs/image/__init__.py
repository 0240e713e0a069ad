"""The image: a table of ledger metadata with an index from bookies to ledgers, kept in files beside the reports
or in a store.

It is a cache. It names the ledgers that a reaction to the loss of a bookie reads first, and decides nothing (R100).
"""
