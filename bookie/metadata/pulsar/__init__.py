"""Pulsar's own nodes in the metadata store, as far as they refer to ledgers: decoding them and reading them in bulk."""
