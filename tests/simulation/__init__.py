"""Seeded histories. A whole cluster on virtual time: real modules on a simulated network, disks, store and processes.

``storage``, ``client`` and ``replicator`` contain histories of single parts under crashes and faults.
"""
