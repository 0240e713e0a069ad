"""Failed attempts to repair: ``/bkheal/failures/<ledgers root>/<ledger id>``. All workers share the pauses.

After a failed repair, a ledger is tried again after a pause, which grows with the number of consecutive failures. The
record contains both. Each failure replaces the record, and it is deleted when the task ends or is parked, so there is
at most one small record for each task.

The record contains a duration and no date, because clocks differ. Each worker counts the pause from its first read of
this record, so it may wait longer than the pause, but never less. The token distinguishes a record from the previous
one. After locking a ledger, a worker compares the token with the one in its list, and does nothing if another worker
has tried since.

A lost or damaged record costs another attempt.

Source: R47, docs/failure-model.md#R47 and #state-under-bkheal.
"""

from __future__ import annotations

import builtins
import logging
from dataclasses import dataclass

from bookie.metadata.nodes import READS_PER_BATCH, child_names, in_steps, put, remove, sorted_ids
from bookie.metadata.own_state import own_path
from bookie.metadata.port import MetadataStore, Node
from bookie.model.ids import LedgerId
from bookie.model.records import UnreadableRecordError, decode_record, encode_record

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FailedTask:
    """A task with a failed repair, perhaps several times."""

    ledger_id: LedgerId
    failures: int
    """Number of consecutive failures."""
    pause_s: float
    """Seconds until the next attempt by any worker."""
    token: str
    """Unique to this failure."""


class FailedTasks:
    """Failures of the cluster at ``ledgers_root``."""

    def __init__(self, store: MetadataStore, ledgers_root: str) -> None:
        self._store = store
        self._parent = own_path("failures", ledgers_root)

    async def note(self, task: FailedTask) -> None:
        """Record a failure in place of the previous one. The last write wins.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; recording it again is safe.
        """
        await put(self._store, self.path(task.ledger_id), encode_record(task, without=["ledger_id"]))

    async def list(self) -> builtins.list[FailedTask]:
        """Return every failure, by ledger id; yields to the event loop between parts of a long list.

        Raises:
            StoreUnavailableError: no answer.
        """
        found: builtins.list[FailedTask] = []
        ids = await sorted_ids(await child_names(self._store, self._parent))
        async for part in in_steps(ids, READS_PER_BATCH):
            nodes = await self._store.get_many_data([self.path(ledger_id) for ledger_id in part])
            async for pairs in in_steps(list(zip(part, nodes, strict=True))):
                decoded = (_decode(ledger_id, data) for ledger_id, data in pairs if data is not None)
                found += [task for task in decoded if task is not None]
        return found

    def decode(self, ledger_id: LedgerId, node: Node | None) -> FailedTask | None:
        """Return the failure in a node read at ``path``; None if there is none."""
        return None if node is None else _decode(ledger_id, node.data)

    async def forget(self, ledger_id: LedgerId) -> None:
        """Delete the record of a ledger's failures. Idempotent.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; forgetting again is safe.
        """
        await remove(self._store, self.path(ledger_id))

    def path(self, ledger_id: LedgerId) -> str:
        """Return the path of a ledger's record."""
        return f"{self._parent}/{ledger_id}"


def _decode(ledger_id: LedgerId, data: bytes) -> FailedTask | None:
    try:
        return decode_record(data, FailedTask, ledger_id=ledger_id)
    except UnreadableRecordError as error:
        _log.warning("record of a failed repair cannot be read", extra={"ledger_id": ledger_id, "error": str(error)})
        return None
