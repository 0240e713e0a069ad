"""The durable entries of one node: journal, entry logs, index, fences.

Does not belong here: network protocols, cluster metadata.
"""
