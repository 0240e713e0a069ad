"""Parked tasks: those that cannot be repaired in the present state of the cluster, with the reason.

They are records of bkheal, outside Apache's tree. They save work and inform
operators; losing one costs another attempt, and a damaged one counts as not parked.

Source: docs/failure-model.md#state-under-bkheal.
"""

from __future__ import annotations

import builtins
import enum
import logging
from dataclasses import dataclass, replace
from typing import Final

from bookie.metadata.layout import own_path
from bookie.metadata.nodes import child_names, find, ledger_ids, put, remove
from bookie.metadata.port import MetadataStore
from bookie.model.ids import BookieId, LedgerId
from bookie.model.records import UnreadableRecordError, decode_record, encode_record

_log = logging.getLogger(__name__)

_DETAIL_MAX: Final = 4000
"""Characters of a detail that are kept: enough for a person, and far below what a node holds."""


class ParkReason(enum.Enum):
    """Why a task cannot be repaired now."""

    NO_CANDIDATE_BOOKIE = "no_candidate_bookie"
    NO_LIVE_COPY = "no_live_copy"
    NEEDS_RECOVERY = "needs_recovery"
    UNREADABLE_ENTRIES = "unreadable_entries"
    UNREADABLE_METADATA = "unreadable_metadata"
    OPEN_LEDGER = "open_ledger"
    """A bookie is drained that a writer may still write to: it is left to the writer to leave it."""
    TARGETS_REFUSE = "targets_refuse"
    """Every candidate refuses copies of the ledger, several attempts in a row."""
    SILENT_BOOKIES = "silent_bookies"
    """Registered bookies that are needed do not answer, several attempts in a row."""
    INTERNAL_ERROR = "internal_error"
    """The repair broke an internal rule; the detail says where."""


@dataclass(frozen=True, slots=True)
class ParkedTask:
    """A task that waits for a change of the cluster."""

    ledger_id: LedgerId
    reason: ParkReason
    detail: str
    since_ms: int
    bookies_seen: frozenset[BookieId]
    """Writable bookies when it was parked (all registered ones, if a recovery was not possible or bookies were silent):
    a new one is a reason to try again."""
    task_version: int


class ParkedTasks:
    """Parked tasks of the cluster at ``ledgers_root``."""

    def __init__(self, store: MetadataStore, ledgers_root: str) -> None:
        self._store = store
        self._parent = own_path("parked", ledgers_root)

    async def park(self, task: ParkedTask) -> None:
        """Park a task, or replace what is known about it. The last one wins.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; parking again is safe.
        """
        record = replace(task, detail=task.detail[:_DETAIL_MAX])
        await put(self._store, self._path(task.ledger_id), encode_record(record, without=["ledger_id"]))

    async def get(self, ledger_id: LedgerId) -> ParkedTask | None:
        """Return a parked task, None if it is not parked or cannot be read.

        Raises:
            StoreUnavailableError: no answer.
        """
        node = await find(self._store, self._path(ledger_id))
        return None if node is None else _decode(ledger_id, node.data)

    async def list(self) -> builtins.list[ParkedTask]:
        """Return every parked task, by ledger id.

        Raises:
            StoreUnavailableError: no answer.
        """
        ids = ledger_ids(await child_names(self._store, self._parent))
        found = await self._store.get_many_data([self._path(ledger_id) for ledger_id in ids])
        tasks = [_decode(ledger_id, data) for ledger_id, data in zip(ids, found, strict=True) if data is not None]
        return [task for task in tasks if task is not None]

    async def unpark(self, ledger_id: LedgerId) -> None:
        """Forget a parked task. Idempotent.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; unparking again is safe.
        """
        await remove(self._store, self._path(ledger_id))

    def _path(self, ledger_id: LedgerId) -> str:
        return f"{self._parent}/{ledger_id}"


def _decode(ledger_id: LedgerId, data: bytes) -> ParkedTask | None:
    try:
        return decode_record(data, ParkedTask, ledger_id=ledger_id)
    except UnreadableRecordError as error:
        _log.warning("parked task cannot be read", extra={"ledger_id": ledger_id, "error": str(error)})
        return None
