"""The adapters of the storage ports: files and RocksDB, and their in-memory twins with simulated power loss.

The ports are in ``bookie.storage.port``.
"""
