"""Pulsar's own nodes in the metadata store that refer to ledgers: decode them, and read them in bulk."""
