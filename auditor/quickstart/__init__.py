"""The guided tour: a real cluster that loses a bookie, is audited, repaired, and verified.

Does not belong here: product code. The tour uses the same modules as a production cluster.
"""
