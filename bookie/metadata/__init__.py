"""Cluster metadata: the store port, its ZooKeeper adapter and in-memory twin, and the layout on top of it.

Does not belong here: decisions about repair or writing; entry bytes.
"""
