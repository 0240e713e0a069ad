"""Round-robin placement of entries: the positions that store an entry, and the entries that a position stores.

Entry ``n`` goes to ensemble positions ``(n + i) mod E`` for ``i < Qw``, with absolute entry ids
(docs/formats.md#schedule). Ranges are inclusive. All functions compute with runs and never loop over entries, except
``stored_entries``.
"""

from __future__ import annotations

from collections.abc import Iterator

from bookie.model.ids import EntryId


def write_set(entry_id: int, ensemble_size: int, write_quorum: int) -> tuple[int, ...]:
    """Return the ensemble positions that store ``entry_id``, in the order in which a reader asks them."""
    return tuple((entry_id + i) % ensemble_size for i in range(write_quorum))


def stores(position: int, entry_id: int, ensemble_size: int, write_quorum: int) -> bool:
    """Return whether the bookie at ``position`` is in the write set of ``entry_id``."""
    return (position - entry_id) % ensemble_size < write_quorum


def stored_count(position: int, first: int, last: int, ensemble_size: int, write_quorum: int) -> int:
    """Return how many entries of ``first..last`` (inclusive) the bookie at ``position`` stores."""
    if last < first:
        return 0
    whole, rest = divmod(last - first + 1, ensemble_size)
    tail = sum(stores(position, first + offset, ensemble_size, write_quorum) for offset in range(rest))
    return whole * write_quorum + tail


def first_stored(position: int, first: int, last: int, ensemble_size: int, write_quorum: int) -> EntryId | None:
    """Return the first entry of ``first..last`` that ``position`` stores, or None."""
    for entry_id in range(first, min(last, first + ensemble_size - 1) + 1):
        if stores(position, entry_id, ensemble_size, write_quorum):
            return EntryId(entry_id)
    return None


def last_stored(position: int, first: int, last: int, ensemble_size: int, write_quorum: int) -> EntryId | None:
    """Return the last entry of ``first..last`` that ``position`` stores, or None."""
    for entry_id in range(last, max(first, last - ensemble_size + 1) - 1, -1):
        if stores(position, entry_id, ensemble_size, write_quorum):
            return EntryId(entry_id)
    return None


def stored_entries(position: int, first: int, last: int, ensemble_size: int, write_quorum: int) -> Iterator[EntryId]:
    """Yield the entries of ``first..last`` (inclusive) that ``position`` stores, ascending."""
    for entry_id in range(first, last + 1):
        if stores(position, entry_id, ensemble_size, write_quorum):
            yield EntryId(entry_id)


def occurring_starts(first: int, last: int | None, ensemble_size: int) -> frozenset[int]:
    """Return the first positions of the write sets that occur in ``first..last``; all positions if ``last`` is None.

    A write set is named by its first position, ``entry_id mod E``. An empty range has no write sets.
    """
    if last is None or last - first + 1 >= ensemble_size:
        return frozenset(range(ensemble_size))
    return frozenset(entry_id % ensemble_size for entry_id in range(first, last + 1))
