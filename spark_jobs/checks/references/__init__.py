"""The references check: compare ledgers with the references to them in Pulsar.

The invariant: a ledger is reported as unreferenced only if every possible referrer was read and decoded, twice (A19).
All references and all ledgers are compared first (``comparison``). A ledger without a reference is then checked again
(``second_look``), by reading exactly the node named in its custom metadata. A reference to a nonexistent ledger is
checked again, too. So a change between the two checks is not a finding. A ledger has no verdict if it is open or young,
if it is not Pulsar's, or if a node of its topic is undecodable. Such ledgers are counted by reason.

Pulsar creates a ledger before the reference to it, and for a compaction even hours before, hence the grace period.
"""
