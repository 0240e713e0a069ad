"""The runs and the backlog for a process's status page, read from the store every few seconds.

Every process reads the runs and their history. Only the leader counts the backlog, because a count loads the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, Protocol

from auditor.api.control import Backlog
from bookie.metadata.runs.notes import KindPause
from bookie.metadata.runs.records import Runs, lane_of
from bookie.model.errors import ConflictError, OutcomeUnknownError, PermanentError, TransientError
from bookie.model.run import RunKind, RunRecord, RunState
from bookie.runtime.clock import Clock
from bookie.runtime.signal import Requests
from bookie.runtime.tasks import cancel, guarded

_log = logging.getLogger(__name__)

RUNS_READ: Final = 100
"""Number of newest runs read each time."""
_RUNS_READ_FIRST: Final = 100_100
"""Number of newest runs read at the first time: more than ``runs_kept`` allows, because a kind may run rarely."""
RUNS_READ_OF_KIND: Final = 10
"""Number of newest runs of each kind in ``RunHistory.ended``, if they are not among the newest of all kinds any more.
Dry runs and cancelled runs are not counted."""
_REST_FACTOR: Final = 3.0
"""Pause after a count, as a multiple of its time: a count of a million marks takes minutes, and loads the store."""
_REST_S_MAX: Final = 120.0
"""Longest such pause, because figures that are older than some minutes raise an alert."""


@dataclass(frozen=True, slots=True)
class RunHistory:
    """The runs in the store."""

    running: Sequence[RunRecord] = ()
    """The current runs of all processes."""
    last: Mapping[RunKind, RunRecord] = field(default_factory=dict)
    """As in ``ServiceStatus``."""
    last_complete: Mapping[RunKind, RunRecord] = field(default_factory=dict)
    """As in ``ServiceStatus``."""
    results: Mapping[RunKind, Sequence[RunRecord]] = field(default_factory=dict)
    """As in ``ServiceStatus``."""
    ended: Sequence[RunRecord] = ()
    """The completed runs among the newest, and the newest completed ones of each kind. The newest come first."""
    last_success_ms: Mapping[RunKind, int] = field(default_factory=dict)
    paused_kinds: Mapping[RunKind, KindPause] = field(default_factory=dict)


class BacklogSource(Protocol):
    """The source of the backlog."""

    async def count(self) -> Backlog:
        """Count all current marks. Raises StoreUnavailableError."""
        ...


class Overview:
    """The status of the service."""

    def __init__(
        self,
        runs: Runs,
        counter: BacklogSource,
        clock: Clock,
        *,
        is_leader: Callable[[], bool],
        interval_s: float,
        are_locks_read: bool = False,
    ) -> None:
        """Prepare to read.

        Args:
            runs: the records.
            counter: of the backlog.
            clock: for the pauses.
            is_leader: whether to count the backlog.
            interval_s: shortest pause between two reads.
            are_locks_read: whether a run counts as running only if it holds its lock. The leader marks the records of
                runs whose process has ended as abandoned. Without a leader they stay unchanged until the next run.
        """
        self._runs = runs
        self._counter = counter
        self._clock = clock
        self._is_leader = is_leader
        self._interval_s = interval_s
        self._are_locks_read = are_locks_read
        self._requests = Requests()
        self._newest_id = ""
        """The newest run at the last read."""
        self.history = RunHistory()
        self.read_s: float | None = None
        """When ``history`` was last read, on the monotonic clock; None: not yet."""
        self.backlog = Backlog()

    def request_observation(self) -> None:
        """Read again now, because something changed."""
        self._requests.add()

    async def run(self) -> None:
        """Read and count repeatedly until cancelled, also after failures.

        Runs are read concurrently, so a count that takes minutes does not delay them.
        """
        counting = guarded("backlog", self._repeat_forever(self._count))
        try:
            await self._repeat_forever(self._refresh)
        finally:
            await cancel(counting)

    async def _repeat_forever(self, work: Callable[[], Awaitable[None]]) -> None:
        reason = ""
        while True:
            requests = self._requests.count
            began_s = self._clock.monotonic_s()
            try:
                await work()
                reason = ""
            except (TransientError, OutcomeUnknownError, ConflictError, PermanentError) as error:
                if str(error) != reason:
                    reason = str(error)
                    _log.warning("runs or backlog cannot be read now", extra={"reason": reason})
            except Exception:  # noqa: BLE001  the boundary of a task: no error may end it, such as too many open files
                _log.exception("reading runs or the backlog failed")
            took_s = self._clock.monotonic_s() - began_s
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(self._interval_s, min(_REST_FACTOR * took_s, _REST_S_MAX))):
                    await self._requests.since(requests)

    async def _refresh(self) -> None:
        self.history = await self._read()
        self.read_s = self._clock.monotonic_s()

    async def _count(self) -> None:
        self.backlog = await self._counter.count() if self._is_leader() else Backlog()

    async def _read(self) -> RunHistory:
        """Read the history. Runs of a rare kind that are not among the newest any more come from earlier reads."""
        before, now_ms = self.history, self._clock.epoch_ms()
        newest = await self._runs.list(RUNS_READ, now_ms)
        if self._newest_id not in (record.run_id for record in newest):  # the first read, or one after a long outage
            newest = await self._runs.list(_RUNS_READ_FIRST, now_ms)
        ended = tuple(record for record in newest if record.state.is_final)
        by_check = chain.from_iterable(record.by_check() for record in ended)
        earlier = chain.from_iterable(before.results.values())
        history = RunHistory(
            running=await self._running([record for record in newest if not record.state.is_final]),
            last=_last((*ended, *before.last.values())),
            last_complete=_last(filter(_is_complete, (*ended, *before.last_complete.values()))),
            results=_results(chain(by_check, earlier)),
            ended=_ended((*ended, *before.ended)),
            last_success_ms=await self._runs.last_success_ms(),
            paused_kinds=await self._runs.paused_kinds(now_ms),
        )
        self._newest_id = newest[0].run_id if newest else ""
        return history

    async def _running(self, records: Sequence[RunRecord]) -> Sequence[RunRecord]:
        if not self._are_locks_read:
            return tuple(records)
        holders = {lane: await self._runs.holder(lane) for lane in set(map(lane_of, records))}
        return tuple(
            record
            for record in records
            if (holder := holders[lane_of(record)]) is not None and holder.run_id == record.run_id
        )


def _ended(ended: Iterable[RunRecord]) -> Sequence[RunRecord]:
    """Return the newest runs of all kinds, and the newest of each kind; ``ended`` begins with the newest."""
    kept: dict[str, RunRecord] = {}
    decided: Counter[RunKind] = Counter()
    for record in ended:
        does_count = not record.is_dry_run and not record.was_stopped
        if record.run_id in kept or (
            len(kept) >= RUNS_READ and not (does_count and decided[record.kind] < RUNS_READ_OF_KIND)
        ):
            continue
        kept[record.run_id] = record
        decided[record.kind] += does_count
    return tuple(kept.values())


def _last(ended: Iterable[RunRecord]) -> Mapping[RunKind, RunRecord]:
    """Return the newest run of each kind. It omits dry runs and runs of a range or a sample: they take less time."""
    last: dict[RunKind, RunRecord] = {}
    for record in ended:
        if record.is_every_ledger and not record.is_dry_run:
            last.setdefault(record.kind, record)
    return last


def _is_complete(record: RunRecord) -> bool:
    return record.is_complete


def _results(ended: Iterable[RunRecord]) -> Mapping[RunKind, Sequence[RunRecord]]:
    """Return the runs with the results of each kind, from ``ended`` by check, the newest first.

    An incomplete run may have found more than the last complete one. Problems that it did not find may still exist.
    Runs that did not reach their end have no results, and neither do dry runs.
    """
    results: dict[RunKind, list[RunRecord]] = {}
    for record in ended:
        if record.is_dry_run or record.state is not RunState.DONE:
            continue
        known = results.setdefault(record.kind, [])
        if not known or (record.is_complete and not known[-1].is_complete):
            known.append(record)
    return results
