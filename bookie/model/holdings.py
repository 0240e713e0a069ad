"""The entries that a ledger's metadata places on a bookie, and whether a bookie's list contains them all (pure)."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator

from bookie.model.availability import EntryRuns
from bookie.model.ids import BookieId, EntryId
from bookie.model.metadata import LedgerMetadata


def holds_all(metadata: LedgerMetadata, bookie: BookieId, held: EntryRuns) -> bool:
    """Return whether ``held`` contains every entry that a closed ledger's metadata places on the bookie."""
    end_of_ledger = metadata.last_entry_id
    assert end_of_ledger is not None, "only a closed ledger has an end"
    for index, fragment in enumerate(metadata.fragments):
        last = metadata.fragment_last_entry_id(index)
        assert last is not None, "each fragment of a closed ledger has an end"
        last = min(last, end_of_ledger)  # fragments beyond the ledger's end hold nothing (BK-623)
        for position, member in enumerate(fragment.members):
            if member != bookie:
                continue
            where = fragment.first_entry_id, last
            if metadata.stripe.held_count(position, held, *where) < metadata.stripe.count(position, *where):
                return False
    return True


def placed_entries(metadata: LedgerMetadata, bookie: BookieId) -> Iterator[EntryId]:
    """Yield the entries that a closed ledger's metadata places on the bookie, ascending, each once."""
    end_of_ledger = metadata.last_entry_id
    assert end_of_ledger is not None, "only a closed ledger has an end"
    for index in range(len(metadata.fragments)):
        last = metadata.fragment_last_entry_id(index)
        assert last is not None, "each fragment of a closed ledger has an end"
        yield from fragment_entries(metadata, index, EntryId(min(last, end_of_ledger)), bookie)


def fragment_entries(metadata: LedgerMetadata, index: int, last: EntryId, bookie: BookieId) -> Iterator[EntryId]:
    """Yield the bookie's entries of one fragment up to ``last`` (inclusive), ascending, each once."""
    fragment = metadata.fragments[index]
    stored = [
        metadata.stripe.entries(position, fragment.first_entry_id, last)
        for position, member in enumerate(fragment.members)
        if member == bookie
    ]
    yield from (entry_id for entry_id, _ in itertools.groupby(heapq.merge(*stored)))
