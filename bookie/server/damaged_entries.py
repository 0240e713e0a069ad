"""The known damaged entries of this bookie, until they are replaced.

Reads and scrubs note damaged entries here. The bookie then omits them from its lists, and the list has the status
CORRUPT: an entry that is not in the list is damaged or not stored here. An audit reports them, and a repair replaces
each of them with a good copy, like a missing entry (R105). For readers they remain CORRUPT, which is never "absent"
(S6). An add of the entry removes the note.

An entry that the disk cannot read is noted only by a scrub, which has read it twice. Its readers get an I/O error.

The notes are hints: a superfluous note only causes a repair to store a good copy again.

Source: docs/failure-model.md#R105; S rules are defined in docs/invariants.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from itertools import islice
from typing import Final

from bookie.model.availability import EntryRuns
from bookie.model.ids import EntryId, LedgerId
from bookie.model.packet import packet_ids
from bookie.wire.port import EntryResult, ListReply, Status

ENTRIES_MAX: Final = 10_000
"""The most noted entries, which take about a megabyte. A disk with more is failing; the rest are CORRUPT only for
readers."""
_RUNS_SHOWN_MAX: Final = 5


class DamagedEntries:
    """The known damaged entries of one bookie."""

    def __init__(self, entries_max: int = ENTRIES_MAX) -> None:
        """Start without notes."""
        self.count = 0
        """The number of noted entries."""
        self._entries_max = entries_max
        self._ledgers: dict[LedgerId, set[EntryId]] = {}
        self._reads: dict[LedgerId, list[set[EntryId]]] = {}
        """For each running read, by ledger, the entries that were stored during it."""

    @contextmanager
    def reading(self, ledger_id: LedgerId) -> Iterator[AbstractSet[EntryId]]:
        """Yield the set of the entries that are stored during a read inside the context, for ``read``."""
        stored: set[EntryId] = set()
        reads = self._reads.setdefault(ledger_id, [])
        reads.append(stored)
        try:
            yield stored
        finally:
            reads[:] = [each for each in reads if each is not stored]
            if not reads:
                del self._reads[ledger_id]

    def read(
        self,
        ledger_id: LedgerId,
        results: Sequence[EntryResult],
        stored: AbstractSet[EntryId],
        *,
        are_errors_damage: bool = False,
    ) -> None:
        """Note the results of a read, except for entries that were stored during it.

        ``are_errors_damage``: whether an entry with an I/O error counts as damaged.
        """
        is_noted = ledger_id in self._ledgers
        for result in results:
            if result.status is Status.CORRUPT or (are_errors_damage and result.status is Status.IO_ERROR):
                if result.entry_id not in stored:
                    self._note(ledger_id, result.entry_id)
            elif is_noted and result.status is Status.OK:
                self._end(ledger_id, (result.entry_id,))

    def stored(self, ledger_id: LedgerId, entries: Sequence[bytes]) -> None:
        """Remove the notes of newly stored entries, which replace the damaged ones."""
        reads = self._reads.get(ledger_id, ())
        if not reads and ledger_id not in self._ledgers:
            return
        entry_ids = [packet_ids(entry)[1] for entry in entries]
        for stored in reads:
            stored.update(entry_ids)
        self._end(ledger_id, entry_ids)

    def without_damaged_entries(self, ledger_id: LedgerId, reply: ListReply) -> ListReply:
        """Return the list without its damaged entries. If there are any, its status changes from OK to CORRUPT."""
        damaged = self._ledgers.get(ledger_id)
        is_list = reply.status in (Status.OK, Status.LIMBO, Status.CORRUPT) or reply.status.is_absent
        if not damaged or not is_list:
            return reply
        if reply.status is not Status.CORRUPT:  # such a list omits entries in directories out of use (R114)
            self._end(ledger_id, [entry_id for entry_id in damaged if entry_id not in reply.entries])  # deleted entries
        if not damaged:
            return reply
        runs = EntryRuns.of(sorted(damaged))
        status = Status.CORRUPT if reply.status is Status.OK else reply.status
        details = [_detail(runs, len(damaged)), *([reply.detail] if reply.detail else [])]
        return ListReply(status, reply.entries.without(runs), "; ".join(details))

    def ledgers(self, entries_max: int) -> list[tuple[LedgerId, list[EntryId]]]:
        """Return at most ``entries_max`` noted entries by ledger, ascending."""
        found: list[tuple[LedgerId, list[EntryId]]] = []
        left = entries_max
        for ledger_id, damaged in sorted(self._ledgers.items()):
            if left <= 0:
                break
            found.append((ledger_id, sorted(damaged)[:left]))
            left -= len(found[-1][1])
        return found

    def _note(self, ledger_id: LedgerId, entry_id: EntryId) -> None:
        noted = self._ledgers.get(ledger_id, set())
        if entry_id not in noted and self.count < self._entries_max:
            noted.add(entry_id)
            self._ledgers[ledger_id] = noted
            self.count += 1

    def _end(self, ledger_id: LedgerId, entry_ids: Sequence[EntryId]) -> None:
        noted = self._ledgers.get(ledger_id)
        if noted is None:
            return
        before = len(noted)
        noted.difference_update(entry_ids)
        self.count -= before - len(noted)
        if not noted:
            del self._ledgers[ledger_id]


def _detail(runs: EntryRuns, count: int) -> str:
    shown = [
        str(first) if first == last else f"{first}-{last}" for first, last in islice(runs.runs, _RUNS_SHOWN_MAX + 1)
    ]
    more = ", ..." if len(shown) > _RUNS_SHOWN_MAX else ""
    return f"{count} damaged: {', '.join(shown[:_RUNS_SHOWN_MAX])}{more}"
