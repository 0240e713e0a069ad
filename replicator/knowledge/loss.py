"""Detect that a member lost acknowledged entries. Pure functions.

A slow member has its first entries and lacks the last ones. A member that returned with empty disks lacks the first
ones; if a writer continued with it, it has only entries written after its return. So a member has lost entries if it
has none, or if it lacks an entry before one that it has. A few entries from both ends of a few fragments are enough to
show this, so the check is cheap even for a large ledger.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from bookie.model.availability import EntryRuns
from bookie.model.ids import BookieId, EntryId
from bookie.model.metadata import LedgerMetadata

_SAMPLED_FRAGMENTS_PER_END: Final = 2
_SAMPLED_ENTRIES_PER_END: Final = 8


def acknowledged_sample(metadata: LedgerMetadata, bookie: BookieId, confirmed: EntryId) -> list[EntryId]:
    """Return a sample of the entries of ``bookie`` up to ``confirmed`` (inclusive), in ascending order.

    These are at most 64 entries, from both ends of the bookie's first and last fragments.
    """
    mine: list[list[EntryId]] = []
    for index, fragment in enumerate(metadata.fragments):
        if bookie not in fragment.members or fragment.first_entry_id > confirmed:
            continue
        end = metadata.fragment_last_entry_id(index)
        last = confirmed if end is None else EntryId(min(end, confirmed))
        mine.append(_ends(metadata, index, bookie, last))
    chosen = (
        mine
        if len(mine) <= 2 * _SAMPLED_FRAGMENTS_PER_END
        else mine[:_SAMPLED_FRAGMENTS_PER_END] + mine[-_SAMPLED_FRAGMENTS_PER_END:]
    )
    return sorted({entry_id for entries in chosen for entry_id in entries})


def has_lost_entries(sample: Sequence[EntryId], held: EntryRuns) -> bool:
    """Return whether a bookie lost entries, given that it has only ``held`` of ``sample`` (ascending).

    It lost none if ``held`` contains the first entry of the sample and has no gap, or if the sample is empty.
    """
    is_held = [entry_id in held for entry_id in sample]
    return bool(is_held) and (not is_held[0] or is_held != sorted(is_held, reverse=True))


def _ends(metadata: LedgerMetadata, index: int, bookie: BookieId, last: EntryId) -> list[EntryId]:
    first, size = metadata.fragments[index].first_entry_id, metadata.ensemble_size
    span = _SAMPLED_ENTRIES_PER_END * size
    heads = _stored(metadata, index, bookie, range(first, min(last + 1, first + span)))
    tails = _stored(metadata, index, bookie, range(max(first, last + 1 - span), last + 1))
    return heads[:_SAMPLED_ENTRIES_PER_END] + tails[-_SAMPLED_ENTRIES_PER_END:]


def _stored(metadata: LedgerMetadata, index: int, bookie: BookieId, entry_ids: Iterable[int]) -> list[EntryId]:
    positions = [position for position, member in enumerate(metadata.fragments[index].members) if member == bookie]
    return [
        EntryId(entry_id)
        for entry_id in entry_ids
        if any(metadata.stripe.stores(position, entry_id) for position in positions)
    ]
