"""The entries placed on a bookie by a ledger's metadata, and their comparison with the bookie's list (pure)."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Generator, Iterator
from typing import Final

from bookie.model.availability import EntryRuns, finished
from bookie.model.ids import BookieId, EntryId
from bookie.model.metadata import LedgerMetadata

ENTRIES_COMPARED_PER_STEP: Final = 50_000
"""Number of entries compared between two pauses. It takes a few milliseconds if every second entry begins a run."""


def holds_all(metadata: LedgerMetadata, bookie: BookieId, held: EntryRuns) -> bool:
    """Return whether ``held`` contains every entry placed on the bookie by a closed ledger's metadata."""
    return finished(comparing(metadata, bookie, held))


def comparing(metadata: LedgerMetadata, bookie: BookieId, held: EntryRuns) -> Generator[None, None, bool]:
    """Do the same as ``holds_all``, with pauses."""
    end_of_ledger = metadata.last_entry_id
    assert end_of_ledger is not None, "only a closed ledger has an end"
    for index, fragment in enumerate(metadata.fragments):
        last = metadata.fragment_last_entry_id(index)
        assert last is not None, "each fragment of a closed ledger has an end"
        last = min(last, end_of_ledger)  # fragments beyond the ledger's end hold nothing (BK-623)
        for position, member in enumerate(fragment.members):
            if member != bookie:
                continue
            for start in range(fragment.first_entry_id, last + 1, ENTRIES_COMPARED_PER_STEP):
                where = start, min(last, start + ENTRIES_COMPARED_PER_STEP - 1)
                if metadata.stripe.held_count(position, held, *where) < metadata.stripe.count(position, *where):
                    return False
                yield
    return True


def placed_entries(metadata: LedgerMetadata, bookie: BookieId) -> Iterator[EntryId]:
    """Yield the entries placed on the bookie by a closed ledger's metadata, ascending, each once."""
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
