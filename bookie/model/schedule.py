"""Round-robin placement of entries: who stores entry ``n``, and which entries a position stores.

Entry ``n`` goes to ensemble positions ``(n + i) mod E`` for ``i < Qw``, with absolute entry ids
(docs/formats.md#schedule). Ranges are inclusive. Everything here is arithmetic on runs, never a loop over entries,
except the iterator at the end.
"""

from __future__ import annotations

from collections.abc import Iterator

from bookie.model.ids import EntryId


def write_set(entry_id: int, ensemble_size: int, write_quorum: int) -> tuple[int, ...]:
    """Ensemble positions that store ``entry_id``, in the order a reader asks them."""
    return tuple((entry_id + i) % ensemble_size for i in range(write_quorum))


def stores(position: int, entry_id: int, ensemble_size: int, write_quorum: int) -> bool:
    """Whether the bookie at ``position`` is in the write set of ``entry_id``."""
    return (position - entry_id) % ensemble_size < write_quorum


def stored_count(position: int, first: int, last: int, ensemble_size: int, write_quorum: int) -> int:
    """How many entries of ``first..last`` (inclusive) the bookie at ``position`` stores."""
    if last < first:
        return 0
    whole, rest = divmod(last - first + 1, ensemble_size)
    tail = sum(stores(position, first + offset, ensemble_size, write_quorum) for offset in range(rest))
    return whole * write_quorum + tail


def first_stored(position: int, first: int, last: int, ensemble_size: int, write_quorum: int) -> EntryId | None:
    """First entry of ``first..last`` that ``position`` stores, or None."""
    for entry_id in range(first, min(last, first + ensemble_size - 1) + 1):
        if stores(position, entry_id, ensemble_size, write_quorum):
            return EntryId(entry_id)
    return None


def last_stored(position: int, first: int, last: int, ensemble_size: int, write_quorum: int) -> EntryId | None:
    """Last entry of ``first..last`` that ``position`` stores, or None."""
    for entry_id in range(last, max(first, last - ensemble_size + 1) - 1, -1):
        if stores(position, entry_id, ensemble_size, write_quorum):
            return EntryId(entry_id)
    return None


def stored_entries(position: int, first: int, last: int, ensemble_size: int, write_quorum: int) -> Iterator[EntryId]:
    """Entries of ``first..last`` (inclusive) that ``position`` stores, ascending."""
    for entry_id in range(first, last + 1):
        if stores(position, entry_id, ensemble_size, write_quorum):
            yield EntryId(entry_id)


def occurring_starts(first: int, last: int | None, ensemble_size: int) -> frozenset[int]:
    """First positions of the write sets that occur in ``first..last``; all of them if ``last`` is unknown.

    A write set is named by its first position, ``entry_id mod E``. An empty range has none.
    """
    if last is None or last - first + 1 >= ensemble_size:
        return frozenset(range(ensemble_size))
    return frozenset(entry_id % ensemble_size for entry_id in range(first, last + 1))
