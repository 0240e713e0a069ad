"""State of our own, under a root of its own, outside of Apache's tree.

Here: parked tasks, those that cannot be repaired as the cluster is now, with the reason. They save work and inform
people; losing one costs another attempt, and a damaged one counts as not parked.

Source: docs/failure-model.md#state-under-bkheal.
"""

from __future__ import annotations

import builtins
import enum
import json
import logging
from dataclasses import dataclass
from typing import Final

from bookie.metadata.layout import own_path
from bookie.metadata.nodes import create_with_parents
from bookie.metadata.port import ANY_VERSION, MetadataStore, NodeExistsError, NoNodeError
from bookie.model.ids import BookieId, LedgerId

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


@dataclass(frozen=True, slots=True)
class ParkedTask:
    """A task that waits for a change of the cluster."""

    ledger_id: LedgerId
    reason: ParkReason
    detail: str
    since_ms: int
    bookies_seen: frozenset[BookieId]
    """Writable bookies when it was parked (all registered ones, if a recovery was not possible): a new one is a reason
    to try again."""
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
        path, data = self._path(task.ledger_id), _encode(task)
        try:
            await self._store.set(path, data, ANY_VERSION)
        except NoNodeError:
            try:
                await create_with_parents(self._store, path, data, "/")
            except NodeExistsError:
                await self._store.set(path, data, ANY_VERSION)

    async def get(self, ledger_id: LedgerId) -> ParkedTask | None:
        """Return a parked task, None if it is not parked or cannot be read.

        Raises:
            StoreUnavailableError: no answer.
        """
        try:
            node = await self._store.get(self._path(ledger_id))
        except NoNodeError:
            return None
        return _decode(ledger_id, node.data)

    async def list(self) -> builtins.list[ParkedTask]:
        """Return every parked task, by ledger id.

        Raises:
            StoreUnavailableError: no answer.
        """
        try:
            names = (await self._store.children(self._parent)).names
        except NoNodeError:
            return []
        ids = sorted(LedgerId(int(name)) for name in names if name.isascii() and name.isdigit())
        found = await self._store.get_many_data([self._path(ledger_id) for ledger_id in ids])
        tasks = [_decode(ledger_id, data) for ledger_id, data in zip(ids, found, strict=True) if data is not None]
        return [task for task in tasks if task is not None]

    async def unpark(self, ledger_id: LedgerId) -> None:
        """Forget a parked task. Idempotent.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; unparking again is safe.
        """
        try:
            await self._store.delete(self._path(ledger_id))
        except NoNodeError:
            return

    def _path(self, ledger_id: LedgerId) -> str:
        return f"{self._parent}/{ledger_id}"


def _encode(task: ParkedTask) -> bytes:
    return json.dumps(
        {
            "reason": task.reason.value,
            "detail": task.detail[:_DETAIL_MAX],
            "since_ms": task.since_ms,
            "bookies_seen": sorted(task.bookies_seen),
            "task_version": task.task_version,
        }
    ).encode()


def _decode(ledger_id: LedgerId, data: bytes) -> ParkedTask | None:
    try:
        fields = json.loads(data)
        return ParkedTask(
            ledger_id,
            ParkReason(fields["reason"]),
            str(fields["detail"]),
            int(fields["since_ms"]),
            frozenset(BookieId(str(bookie)) for bookie in fields["bookies_seen"]),
            int(fields["task_version"]),
        )
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        _log.warning("parked task cannot be read", extra={"ledger_id": ledger_id, "error": repr(error)})
        return None
