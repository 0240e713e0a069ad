"""The references check: ledgers compared with what refers to them in Pulsar.

The invariant: a ledger is reported as unreferenced only if everything that could refer to it was read and decoded,
twice (A19). All references and all ledgers are compared first (``comparison``). A ledger without a reference is then
looked at again, with the very node that its custom metadata names, and so is a reference to a ledger that does not
exist (``second_look``): what changed in the meantime is not a finding. A ledger that is not closed, young, not
Pulsar's, or of a topic with an undecodable node has no verdict, and is counted by reason.

Pulsar creates a ledger before it refers to it, and a compaction of hours before that, hence the grace period.
"""
