"""The deletion of the entries of collected ledgers (docs/failure-model.md#collection-and-checkpoints).

The collector marks a ledger, checks that its entries are no longer needed here, and then collects it with the token of
the mark. Every event after which a client may rely on the entries clears the mark: an add (from its arrival until it is
durable), a fence, limbo, and above all a listing, by which a repair finds the existing entries
(docs/failure-model.md#reservations).

The entries are deleted page by page. No checkpoint runs between the check of the mark and the end of a page, so an
entry that is added during this time stays in the write cache and survives the deletion. A listing waits for the end of
the page, so it contains all entries of the page or none, and no further page is deleted after it. A crash may restore
entries that are still in the journal; the next pass collects them. The ledger's state, with the fence, is permanent
(S17).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from bookie.model.ids import LedgerId
from bookie.runtime.fault_points import fault_point
from bookie.runtime.tasks import guarded
from bookie.storage.checkpoint import Checkpointer
from bookie.storage.disks.index_format import entry_range
from bookie.storage.entry_logs.dead_bytes import dead_bytes, increased
from bookie.storage.ledger_state import LedgerStates, StoredLedgerState
from bookie.storage.port import EntryIndex


class CollectionMark:
    """The token of one mark, equal only to itself."""


CollectionMarks = dict[LedgerId, CollectionMark]
"""The marks that are set."""


@dataclass(frozen=True, slots=True)
class Collection:
    """The deletions of one store."""

    checkpointer: Checkpointer
    states: LedgerStates
    index: EntryIndex
    marks: CollectionMarks
    page_keys: int

    async def delete(self, ledger_id: LedgerId, mark: CollectionMark) -> bool:
        """Delete all entries of a ledger while ``mark`` is set. If it was cleared, return False: some may be deleted.

        Raises:
            DiskError: the index cannot be read or written.
        """
        first, _ = entry_range(ledger_id)
        page: bool | bytes = first
        while not isinstance(page, bool):
            # Always finish a started page: a delayed deletion could otherwise remove entries added later.
            page = await asyncio.shield(guarded("collecting a ledger", self._delete_page(ledger_id, mark, page)))
        return page

    async def _delete_page(self, ledger_id: LedgerId, mark: CollectionMark, start: bytes) -> bool | bytes:
        """Delete the page of entries that begins at the key ``start``.

        Return the key at which the next page begins, True if there are no more entries, or False if the mark was
        cleared.

        A page does not begin at the first entry again, because RocksDB skips deleted keys one by one, and each page
        would take longer than the one before. No entry can appear before ``start``: an add clears the mark.
        """
        limit = 1 if fault_point("collection.tiny_page") else self.page_keys
        async with self.states.using(ledger_id) as state, self.checkpointer.exclusive():
            _, end = entry_range(ledger_id)
            pairs = await self.index.range(start, end, limit)
            if self.marks.get(ledger_id) is not mark:
                return False
            # Nothing has yielded since the check, so entries that are added from now on are kept.
            self.checkpointer.drop(ledger_id)
            if not pairs:
                self._set_collected(state)
                return True
            state.deleting = asyncio.Event()
            try:
                await self._delete(pairs)
            finally:
                state.deleting.set()
                state.deleting = None
            return pairs[-1][0] + b"\0"

    def _set_collected(self, state: StoredLedgerState) -> None:
        del self.marks[state.ledger_id]
        state.is_collected = True
        self.states.changed(state)

    async def _delete(self, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        """Delete entries from the index and count their bytes as dead in their logs, atomically."""
        puts = await increased(self.index, dead_bytes(value for _, value in pairs))
        await self.index.write(puts, [key for key, _ in pairs])
