"""The references check: compare ledgers with the references to them in Pulsar.

The invariant: a ledger is reported as unreferenced only if every possible referrer was read and decoded, twice (A19).
All references and all ledgers are compared first (``comparison``). A ledger without a reference is then checked again,
with exactly the node named in its custom metadata, and so is a reference to a nonexistent ledger (``second_look``): a
change between the two checks is not a finding. A ledger that is not closed, young, not Pulsar's, or of a topic with an
undecodable node has no verdict, and is counted by reason.

Pulsar creates a ledger before the reference to it, and for a compaction even hours before, hence the grace period.
"""
