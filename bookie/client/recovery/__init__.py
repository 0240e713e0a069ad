"""Recover a ledger: fence it, find its last entry, restore the write quorum of the tail, close the metadata.

``recovery`` runs the phases in order; each phase has its own module.
Start with ``recovery``.
"""
