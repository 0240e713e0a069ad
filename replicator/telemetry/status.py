"""The event sinks of every replicator, which count and log events."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from dataclasses import dataclass
from typing import Final, TextIO

from typing_extensions import override

from bookie.metadata.tasks.parked import ParkReason
from bookie.model.ids import LedgerId
from replicator.knowledge.evidence import CorruptCopy
from replicator.telemetry.events import Ending, EventSink, QueueState, TaskResult

_log = logging.getLogger(__name__)

_LEVELS: Final = {
    Ending.REPAIRED: logging.INFO,
    Ending.NOTHING_MISSING: logging.INFO,
    Ending.LEFT: logging.INFO,
    Ending.MOVED: logging.INFO,
    Ending.LEDGER_DELETED: logging.INFO,
    Ending.PARKED: logging.WARNING,
    Ending.IN_GRACE: logging.INFO,
    Ending.MARKED_AGAIN: logging.INFO,
    Ending.BUSY: logging.DEBUG,
    Ending.STOPPED: logging.INFO,
    Ending.FAILED: logging.WARNING,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressCounts:
    """The counts since the start of the process, and the last listing of the tasks."""

    endings: tuple[tuple[Ending, int], ...]
    parked: tuple[tuple[ParkReason, int], ...]
    fragments: int
    entries: int
    bytes: int
    corrupt_copies: int
    recovered: int
    """Ledgers that were recovered because their writer was assumed dead."""
    queue_state: QueueState

    def count(self, ending: Ending) -> int:
        """Return the number of turns that ended in this way."""
        return dict(self.endings).get(ending, 0)


class ReplicatorProgress(EventSink):
    """Counts events."""

    def __init__(self) -> None:
        self._endings: Counter[Ending] = Counter()
        self._parked: Counter[ParkReason] = Counter()
        self._fragments = 0
        self._entries = 0
        self._bytes = 0
        self._corrupt_copies = 0
        self._recovered = 0
        self._queue_state = QueueState()

    @override
    def tasks_listed(self, queue_state: QueueState) -> None:
        self._queue_state = queue_state

    @override
    def task_ended(self, result: TaskResult) -> None:
        self._endings[result.ending] += 1
        if result.reason is not None:
            self._parked[result.reason] += 1
        self._fragments += result.fragments
        self._entries += result.entries
        self._bytes += result.bytes
        self._recovered += result.is_recovered

    @override
    def copy_corrupt(self, ledger_id: LedgerId, copy: CorruptCopy) -> None:
        self._corrupt_copies += 1

    def snapshot(self) -> ProgressCounts:
        """Return the current counters."""
        return ProgressCounts(
            endings=tuple(self._endings.items()),
            parked=tuple(self._parked.items()),
            fragments=self._fragments,
            entries=self._entries,
            bytes=self._bytes,
            corrupt_copies=self._corrupt_copies,
            recovered=self._recovered,
            queue_state=self._queue_state,
        )


class LogEvents(EventSink):
    """Writes events to the process's log."""

    def __init__(self) -> None:
        self._queue_state = QueueState()

    @override
    def tasks_listed(self, queue_state: QueueState) -> None:
        """Log the state if it differs from the last one."""
        if queue_state != self._queue_state:
            _log.info("tasks listed", extra=queue_state.fields())
        self._queue_state = queue_state

    @override
    def task_ended(self, result: TaskResult) -> None:
        _log.log(_LEVELS[result.ending], "task ended", extra=result.fields())

    @override
    def copy_corrupt(self, ledger_id: LedgerId, copy: CorruptCopy) -> None:
        _log.error("stored copy is damaged", extra=_corrupt_fields(ledger_id, copy))


class JsonEvents(EventSink):
    """Writes one JSON object per line, for programs that watch a run. Turns that ended as BUSY are omitted.

    Events of one turn of the event loop are written together, because with thousands of small ledgers per second the
    writes cost more than the text. Use this only on an event loop.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._queue_state = QueueState()
        self._is_flushed_soon = False

    @override
    def tasks_listed(self, queue_state: QueueState) -> None:
        """Write the state if it differs from the last one."""
        if queue_state != self._queue_state:
            self._write({"event": "tasks_listed", **queue_state.fields()})
        self._queue_state = queue_state

    @override
    def task_ended(self, result: TaskResult) -> None:
        if result.ending is not Ending.BUSY:
            self._write({"event": "task_ended", **result.fields()})

    @override
    def copy_corrupt(self, ledger_id: LedgerId, copy: CorruptCopy) -> None:
        self._write({"event": "copy_corrupt", **_corrupt_fields(ledger_id, copy)})

    def _write(self, values: dict[str, str | int | float]) -> None:
        self._stream.write(json.dumps(values) + "\n")
        if not self._is_flushed_soon:
            self._is_flushed_soon = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flushed_soon = False
        self._stream.flush()


def _corrupt_fields(ledger_id: LedgerId, copy: CorruptCopy) -> dict[str, str | int | float]:
    return {"ledger_id": ledger_id, "bookie_id": copy.bookie, "entry_id": copy.entry_id, "detail": copy.detail}
