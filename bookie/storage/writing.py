"""Writes of entries, fences and limbo: first to the journal, then to memory once they are durable.

The functions that enqueue never yield, so the caller's checks still hold when a record gets its place in the journal.
Restrictions of a ledger (fenced, limbo) take effect at once. Promises (known, durable) take effect only when they are
true.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bookie.model.errors import FatalError
from bookie.model.ids import EntryId
from bookie.storage.entry_logs.collection import CollectionMarks
from bookie.storage.journal.format import RecordKind
from bookie.storage.journal.journal import Records
from bookie.storage.journal.journals import Journals
from bookie.storage.ledger_state import LedgerStates, StoredLedgerState
from bookie.storage.write_cache import CachedEntry, Caches

Done = asyncio.Future[FatalError | None]
"""Completes with None when the records are durable, or with the reason why they never will be."""


@dataclass(frozen=True, slots=True)
class RecordWriter:
    """The writer of one store. ``on_stored`` or ``on_failed`` is called after each request.

    Every method may raise JournalBusyError or JournalStoppedError; then nothing was enqueued or changed.
    """

    journals: Journals
    caches: Caches
    states: LedgerStates
    marks: CollectionMarks
    on_stored: Callable[[], None]
    on_failed: Callable[[FatalError], None]

    def enqueue_add(self, state: StoredLedgerState, master_key: bytes, entries: Mapping[EntryId, CachedEntry]) -> Done:
        """Store entries; the first ones of a ledger also store its key."""
        records = Records()
        is_first = state.master_key is None
        if is_first:
            records.add(RecordKind.MASTER_KEY, state.ledger_id, master_key)
        size = records.add_entries(state.ledger_id, entries.values())

        def on_durable() -> None:
            self.caches.active.put(state.ledger_id, entries, size)
            self.marks.pop(state.ledger_id, None)  # in case it was set during this add
            if is_first or state.is_collected:
                state.is_collected = False
                self.states.changed(state)

        return self._enqueue(state, records, on_durable, new_key=master_key if is_first else None)

    async def fence(self, state: StoredLedgerState, master_key: bytes) -> FatalError | None:
        """Fence a ledger durably. Concurrent calls share one record. The next call after a failure tries again."""
        if state.fencing is None:
            if state.is_fence_durable and state.is_key_durable:
                return None
            state.fencing = self._enqueue_fence(state, master_key)
        # A cancelled caller must not cancel the result for the others.
        return await asyncio.shield(state.fencing)

    def enqueue_limbo(self, state: StoredLedgerState) -> Done:
        """Put a ledger in limbo, and fence it."""
        records = Records()
        records.add(RecordKind.LIMBO, state.ledger_id)

        def on_durable() -> None:
            state.is_limbo = True  # set it again, because an earlier end of limbo may have become durable since then
            self._fenced(state)

        done = self._enqueue(state, records, on_durable)
        state.is_limbo = state.is_fenced = True
        return done

    def enqueue_limbo_end(self, state: StoredLedgerState) -> Done:
        """End the limbo of a ledger. It stays fenced."""
        records = Records()
        records.add(RecordKind.NO_LIMBO, state.ledger_id)

        def on_durable() -> None:
            state.is_limbo = False
            self._changed(state)

        return self._enqueue(state, records, on_durable)

    async def fence_for_collection(self, state: StoredLedgerState) -> FatalError | None:
        """Fence a ledger durably before it is collected; its key does not change."""
        if state.is_fence_durable:
            return None
        records = Records()
        records.add(RecordKind.FENCE, state.ledger_id)
        done = self._enqueue(state, records, lambda: self._fenced(state))
        state.is_fenced = True
        return await done

    def _enqueue_fence(self, state: StoredLedgerState, master_key: bytes) -> Done:
        records = Records()
        is_first = state.master_key is None
        if is_first:
            records.add(RecordKind.MASTER_KEY, state.ledger_id, master_key)
        records.add(RecordKind.FENCE, state.ledger_id)
        done = self._enqueue(state, records, lambda: self._fenced(state), new_key=master_key if is_first else None)
        state.is_fenced = True
        return done

    def _fenced(self, state: StoredLedgerState) -> None:
        state.is_fence_durable = True
        self._changed(state)

    def _changed(self, state: StoredLedgerState) -> None:
        self.caches.active.count_non_entry()
        self.states.changed(state)

    def _enqueue(
        self, state: StoredLedgerState, records: Records, on_durable: Callable[[], None], new_key: bytes | None = None
    ) -> Done:
        """Enqueue records, and keep the state in memory until they are durable, even if the caller is cancelled."""

        def settle() -> None:
            state.uses -= 1
            if state.fencing is done:
                state.fencing = None

        def durable() -> None:
            state.is_key_durable = state.is_key_durable or new_key is not None
            on_durable()
            settle()
            self.on_stored()

        def failed(error: FatalError) -> None:
            if new_key is not None:  # no record depends on the key, because all later records fail as well
                state.master_key = None
            settle()
            self.on_failed(error)

        done = self.journals.enqueue(state.ledger_id, records, durable, failed)
        state.uses += 1
        if new_key is not None:
            state.master_key = new_key
        return done
