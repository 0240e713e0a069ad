"""Seeded histories of whole clusters on virtual time: real modules, with simulated network, disks, store and processes.

``storage``, ``client`` and ``replicator`` contain histories of single parts under crashes and faults.
"""
