"""Whether a bookie's list of entries covers what a ledger's metadata places on it (pure)."""

from __future__ import annotations

from bookie.model.availability import EntryRuns
from bookie.model.ids import BookieId
from bookie.model.metadata import LedgerMetadata
from bookie.model.schedule import stored_count


def holds_all(metadata: LedgerMetadata, bookie: BookieId, held: EntryRuns) -> bool:
    """Whether ``held`` has every entry that a closed ledger's metadata puts on the bookie."""
    end_of_ledger = metadata.last_entry_id
    assert end_of_ledger is not None, "only a closed ledger has an end"
    for index, fragment in enumerate(metadata.fragments):
        last = metadata.fragment_last_entry_id(index)
        assert last is not None, "each fragment of a closed ledger has an end"
        last = min(last, end_of_ledger)  # fragments that lie beyond the ledger's end hold nothing (BK-623)
        size, quorum = len(fragment.members), metadata.write_quorum
        for position, member in enumerate(fragment.members):
            if member != bookie:
                continue
            expected = stored_count(position, fragment.first_entry_id, last, size, quorum)
            parts = ((max(first, fragment.first_entry_id), min(end, last)) for first, end in held.runs)
            if sum(stored_count(position, first, end, size, quorum) for first, end in parts) < expected:
                return False
    return True
