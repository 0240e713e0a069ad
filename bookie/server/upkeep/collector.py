"""The collector, which deletes the entries of ledgers that were deleted or moved to other bookies.

The invariant: entries are deleted only if reads under one mark show that the ledger does not exist, or that it is
closed and neither names nor reserves this bookie (I16). A single read is never sufficient (S13). A bulk read of the
metadata only selects suspects. Each suspect is then checked separately, and the order of the steps makes this safe:

* deleted ledger: mark, ``sync`` and read that there is no metadata, wait longer than a session timeout, ``sync`` and
  read again under the same mark, delete;
* surplus ledger: mark, wait as long, take the ledger's lock (the one that Apache's workers take), ``sync`` and read,
  prove the verdict by one transaction, delete, release the lock. The transaction checks the lock, the version of the
  metadata, and the absence of a reserved copy to this bookie (S16). A reservation of this bookie that exists under the
  lock belongs to a worker that died or lost the lock. It is deleted in the same transaction, so that worker can no
  longer install its copy. The wait is for copies by programs without a lock and without a reservation, such as Apache's
  ``recover``: while such a copy runs, its adds clear the mark (R141).

The storage deletes only while the mark is set. An add or a listing by a repair clears it, so a copy that is made or
found after the verdict is kept. The data is also kept if anything is unreadable, unknown or unexpected. A pass that
would delete implausibly much records this and deletes nothing (S12), until an operator allows it (``HeldCollections``);
then each ledger is checked as usual. A held pass still clears limbo, because that deletes nothing. A pass stops if the
session in which it began is lost (S14).

A crash loses the marks, which are in memory, and the lock ends with the session. A ledger with partly deleted entries
is still listed, and the next pass checks it again. It was fenced durably before the first deletion (S17).

Source: docs/failure-model.md#collection-and-checkpoints; S and I rules are defined in docs/invariants.md.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Final

from bookie.metadata.bookies.collections import HeldCollections
from bookie.metadata.cluster import Cluster, NotAClusterError, open_cluster
from bookie.metadata.ledgers.ledgers import LedgerStore, Unreadable
from bookie.metadata.migration import MigratedError
from bookie.metadata.own_state import StateRootError
from bookie.metadata.port import (
    AccessDeniedError,
    Check,
    Create,
    Delete,
    MetadataStore,
    MultiFailedError,
    Operation,
    StoreUnavailableError,
    WriteOutcomeUnknownError,
)
from bookie.metadata.tasks.locks import HeldLock
from bookie.metadata.tasks.reservations import Reservations
from bookie.metadata.tasks.underreplication import UnderReplication
from bookie.model.errors import BkhealError, FatalError
from bookie.model.holdings import comparing
from bookie.model.ids import BookieId, LedgerId
from bookie.model.metadata import LedgerMetadata
from bookie.runtime.clock import Clock
from bookie.runtime.fault_points import fault_point
from bookie.runtime.waiting import run_cooperatively
from bookie.server.upkeep.collector_verdict import CollectorVerdict, is_mass_deletion, verdict
from bookie.server.upkeep.pauses import Pause
from bookie.storage.entry_logs.collection import CollectionMark
from bookie.storage.entry_logs.compaction import CompactionResult
from bookie.storage.store import LedgerStorage
from bookie.wire.port import Status

_log = logging.getLogger(__name__)

_PAGE: Final = 200
"""The number of ledgers whose metadata is read and decoded at a time. It must not delay requests by more than
milliseconds."""
_PAGE_PAUSE_S: Final = 0.02
_DELETES_PER_STEP: Final = 20_000
"""The number of ledgers that wait together for their second check."""
_RELEASE_TIMEOUT_S: Final = 30.0
"""Deadline for the release of a lock. After it, a later attempt or the end of the session releases the lock."""
_SETTLE_PAUSE_S: Final = 30.0
"""Interval of the attempts to release a lock whose release had no answer."""
_STOPPING_RELEASE_TIMEOUT_S: Final = 1.0
_CHECK_INTERVAL_S_MAX: Final = 3600.0
"""The longest single wait."""
MAJOR_THRESHOLD: Final = 0.8
"""Share of live bytes below which a major collection compacts an entry log: up to four bytes are copied for each freed
one, which an operator may want on a disk that is nearly full."""
_LOST: Final = "the session with ZooKeeper was lost; the next collection starts again"


@dataclass(frozen=True, slots=True)
class CollectorSettings:
    """The settings for when and how fast a bookie collects."""

    interval_s: float = 3600.0
    """Pause between passes, and before the first one. 0: no passes."""
    confirm_after_s: float = 60.0
    """Time between the two checks of a ledger. It is longer than a session timeout, because no server is stale for that
    long, and longer than the pauses between the adds of a copy."""
    suspects_per_s: float = 50.0
    """The rate at which suspects are checked. Each costs the metadata store about six requests."""
    ratio_max: float = 0.5
    """A pass that would delete more than this share of the local ledgers stops (S12); see ``known_min``."""
    known_min: int = 100
    """With at most this many local ledgers, a pass never stops because of ``ratio_max``."""


@dataclass(slots=True)
class CollectorReport:
    """The results of one pass."""

    known: int = 0
    suspects: int = 0
    collected_deleted: int = 0
    collected_surplus: int = 0
    kept: int = 0
    """Suspects that are needed after all, as the second check or a cleared mark showed."""
    locked: int = 0
    """Suspects kept because a worker holds their lock."""
    unknown: int = 0
    """Ledgers kept because something could not be read."""
    limbo_cleared: int = 0
    held: int = 0
    """Suspects kept because there are implausibly many, and no operator has allowed it."""
    stopped: str = ""
    """The reason why the pass or its compaction ended early; empty if they did not."""
    compacted: CompactionResult | None = None
    begun_ms: int = 0
    """Start of the pass in epoch milliseconds."""
    ended_ms: int = 0
    """End of the pass in epoch milliseconds; 0 if it has not ended."""
    is_major: bool = False
    """Whether entry logs with a smaller share of dead bytes were compacted as well."""

    @property
    def collected(self) -> int:
        """The number of ledgers whose entries were deleted."""
        return self.collected_deleted + self.collected_surplus


class _PassEndedError(Exception):
    """A pass must end early. Not raised outside this module."""


class Collector:
    """The collector of one bookie."""

    def __init__(
        self,
        store: MetadataStore,
        cluster: Cluster,
        storage: LedgerStorage,
        bookie: BookieId,
        clock: Clock,
        rng: random.Random,
        settings: CollectorSettings | None = None,
    ) -> None:
        self._store = store
        self._cluster = cluster
        self._ledgers = LedgerStore(store, cluster, rng)
        self._reservations = Reservations(store, cluster.root)
        self._tasks = UnderReplication(store, cluster, clock)
        self._storage = storage
        self._bookie = bookie
        self._clock = clock
        self._rng = rng
        self._settings = settings or CollectorSettings()
        self._epoch = 0
        self._held = HeldCollections(store, cluster.root)
        self._is_holding: bool | None = None
        """Whether the store has a held collection of this bookie; None: an earlier process may have recorded one."""
        self._pause = Pause(clock)
        self.asked: bool | None = None
        """Whether the requested pass, which has not begun yet, is a major one; None if none was requested."""
        self.present: CollectorReport | None = None
        """The running pass, or None."""
        self.last: CollectorReport | None = None
        """The last pass that ended, or None."""
        self._unsettled: dict[LedgerId, HeldLock | None] = {}
        """Ledgers whose lock may still exist because an answer was lost; the value is None if taking it had no
        answer."""

    async def run(self, on_pass: Callable[[CollectorReport], None] | None = None) -> None:
        """Run passes until cancelled. ``on_pass`` is called with the result of each."""
        while True:
            # Random, so that bookies that were started together do not always query the store at the same time.
            await self._rest(self._settings.interval_s * self._rng.uniform(1.0, 1.1))
            is_major, self.asked = bool(self.asked), None
            report = await self.run_pass(is_major=is_major)
            if on_pass is not None:
                on_pass(report)

    def start(self, *, is_major: bool) -> bool:
        """Begin a pass now. Return False if one is already running or requested."""
        if self.is_pending:
            return False
        self.asked = is_major
        self._pause.end()
        return True

    @property
    def is_pending(self) -> bool:
        """Whether a pass is running, or was requested and is about to begin."""
        return self.present is not None or self.asked is not None

    @property
    def is_scheduled(self) -> bool:
        """Whether passes begin without a request."""
        return self._settings.interval_s > 0

    async def _rest(self, seconds: float) -> None:
        """Wait for the next pass. During the wait, release remaining locks, because each of them blocks a repair."""
        end_s = self._clock.monotonic_s() + (seconds if self.is_scheduled else math.inf)
        while self.asked is None and (left_s := end_s - self._clock.monotonic_s()) > 0:
            await self._pause.rest(min(left_s, _SETTLE_PAUSE_S if self._unsettled else _CHECK_INTERVAL_S_MAX))
            with suppress(BkhealError):  # the store does not answer: try again in the next round
                await self._release_remaining_locks()

    async def run_pass(self, *, is_major: bool = False) -> CollectorReport:
        """Run one pass and the compaction after it. A major pass compacts more entry logs.

        Errors of the store or the disk are not raised, but reported.
        """
        report = self.present = CollectorReport(begun_ms=self._clock.epoch_ms(), is_major=is_major)
        try:
            return await self._run_pass(report)
        finally:
            report.ended_ms = self._clock.epoch_ms()
            self.present, self.last = None, report

    async def _run_pass(self, report: CollectorReport) -> CollectorReport:
        self._epoch = self._store.session.epoch
        try:
            await self._check_cluster()
            await self._release_remaining_locks()
            await self._collect(report)
            await self._release_remaining_locks()
            await self._clear_limbo(report)
        except (_PassEndedError, BkhealError) as error:
            report.stopped = report.stopped or str(error)
        try:
            report.compacted = await self._storage.compact(MAJOR_THRESHOLD if report.is_major else None)
        except FatalError as error:  # the storage ends the process by itself if it cannot continue
            report.stopped = report.stopped or f"compaction: {error}"
        level = logging.WARNING if report.stopped else logging.INFO
        _log.log(level, "collector pass", extra={"bookie_id": self._bookie, "report": str(report)})
        return report

    async def _check_cluster(self) -> None:
        """End the pass if the root was formatted: it has none of our ledgers, and none must be deleted (S12)."""
        self._check_session()
        try:
            current = await open_cluster(self._store, self._cluster.root)
        except (NotAClusterError, MigratedError, StateRootError) as error:
            raise _PassEndedError(str(error)) from error
        if current != self._cluster:
            raise _PassEndedError(f"{self._cluster.root} is another cluster than the one this bookie joined")

    async def _collect(self, report: CollectorReport) -> None:
        deleted: list[LedgerId] = []
        surplus: list[LedgerId] = []
        async with aclosing(self._local_ledger_pages()) as pages:
            async for page in pages:
                report.known += len(page)
                await self._clock.sleep(_PAGE_PAUSE_S)
                self._check_session()
                for ledger_id, found in zip(page, await self._ledgers.read_many_metadata(page), strict=True):
                    if isinstance(found, Unreadable):
                        report.unknown += 1
                        continue
                    judged = verdict(found, self._bookie)
                    if judged is CollectorVerdict.DELETED:
                        deleted.append(ledger_id)
                    elif judged is CollectorVerdict.SURPLUS or fault_point("collector.suspect_everything"):
                        surplus.append(ledger_id)
        report.suspects = len(deleted) + len(surplus)
        if not await self._is_deletion_allowed(report):
            return
        if surplus:
            await self._reservations.ensure_parent()
        step = 1 if fault_point("collector.one_at_a_time") else _DELETES_PER_STEP
        for start in range(0, len(surplus), step):
            await self._collect_moved(surplus[start : start + step], report)
        for start in range(0, len(deleted), step):
            await self._collect_deleted(deleted[start : start + step], report)

    async def _is_deletion_allowed(self, report: CollectorReport) -> bool:
        """Return whether the pass deletes a plausible amount, or an operator allows it (S12)."""
        settings = self._settings
        if not is_mass_deletion(
            report.suspects, report.known, ratio_max=settings.ratio_max, known_min=settings.known_min
        ):
            if self._is_holding is not False:
                await self._held.end(self._bookie)
                self._is_holding = False
            return True
        report.held, self._is_holding = report.suspects, True
        now_ms = self._clock.epoch_ms()
        found = await self._held.hold(self._bookie, report.suspects, report.known, now_ms)
        if not found.allows(report.suspects, now_ms):
            _log.error(
                "collector stopped, too much would be deleted", extra={"bookie_id": self._bookie, "report": str(report)}
            )
            report.stopped = (
                f"{report.suspects} of {report.known} ledgers would be deleted: check the metadata. "
                f"`bkheal collection allow {self._bookie}` lets the collection continue"
            )
            return False
        _log.warning(
            "an operator allows a large collection",
            extra={"bookie_id": self._bookie, "by": found.allowed_by, "report": str(report)},
        )
        report.held = 0
        return True

    async def _local_ledger_pages(self) -> AsyncGenerator[list[LedgerId], None]:
        after = -1
        while page := await self._storage.ledger_ids(after, _PAGE):
            yield page
            after = page[-1]

    async def _collect_moved(self, ledger_ids: Sequence[LedgerId], report: CollectorReport) -> None:
        marks = {ledger_id: self._storage.mark(ledger_id) for ledger_id in ledger_ids}
        try:
            await self._clock.sleep(self._settings.confirm_after_s)
            for ledger_id, mark in marks.items():
                await self._keep_pace()
                await self._counting(report, self._collect_surplus(ledger_id, mark, report))
        finally:
            for ledger_id, mark in marks.items():
                self._storage.unmark(ledger_id, mark)

    async def _collect_surplus(self, ledger_id: LedgerId, mark: CollectionMark, report: CollectorReport) -> None:
        if not self._storage.is_marked(ledger_id, mark):
            report.kept += 1
            return
        self._unsettled[ledger_id] = None
        try:
            held = await self._tasks.locks.lock_unmarked(ledger_id, self._bookie)
        except AccessDeniedError:  # no lock was taken
            del self._unsettled[ledger_id]
            raise
        if held is None:
            del self._unsettled[ledger_id]
            report.locked += 1
            return
        self._unsettled[ledger_id] = held
        try:
            if not await self._is_proved_surplus(ledger_id):
                report.kept += 1
                return
            if fault_point("collector.slow_to_delete"):
                await self._clock.sleep(self._rng.uniform(0, 2 * self._settings.confirm_after_s))
            self._check_session()
            if await self._delete(ledger_id, mark, report):
                report.collected_surplus += 1
        finally:
            await self._release(held)

    async def _release(self, held: HeldLock) -> None:
        task = asyncio.current_task()
        is_stopping = task is not None and task.cancelling() > 0
        try:
            async with asyncio.timeout(_STOPPING_RELEASE_TIMEOUT_S if is_stopping else _RELEASE_TIMEOUT_S):
                while True:
                    try:
                        await self._tasks.locks.release(held)
                    except (StoreUnavailableError, WriteOutcomeUnknownError):
                        await self._clock.sleep(1.0)
                    else:
                        self._unsettled.pop(held.ledger_id, None)
                        return
        except TimeoutError:
            _log.warning("lock not released, the next pass tries again", extra={"ledger_id": held.ledger_id})

    async def _release_remaining_locks(self) -> None:
        """Release the locks that may remain: they would keep every worker from their ledgers."""
        for ledger_id, known in sorted(self._unsettled.items()):
            held = known or await self._tasks.locks.lock_unmarked(ledger_id, self._bookie)
            if held is not None:
                await self._release(held)
            else:
                del self._unsettled[ledger_id]

    async def _is_proved_surplus(self, ledger_id: LedgerId) -> bool:
        current = await self._ledgers.current(ledger_id)
        if current is None or verdict(current.metadata, self._bookie) is not CollectorVerdict.SURPLUS:
            return False
        reserved = await self._reservations.read(ledger_id)  # the read before has synced
        path = self._reservations.path(ledger_id)
        rest: list[Operation]
        if reserved is None:
            rest = [Create(path), Delete(path)]  # together they prove that there is none, and leave no node
        elif reserved.has_progress(self._bookie) and await self._tasks.read_many([ledger_id]) != [None]:
            return False  # the next worker will continue this copy (R44)
        elif reserved.names(self._bookie):
            rest = self._reservations.deletes(reserved)
        else:
            rest = [Check(reserved.path, reserved.version)]
        self._check_session()
        try:
            await self._store.multi(
                [self._tasks.locks.check(ledger_id), Check(self._ledgers.path(ledger_id), current.version), *rest]
            )
        except MultiFailedError as error:
            _log.info("surplus ledger kept", extra={"ledger_id": ledger_id, "error": str(error)})
            return False
        return True

    async def _collect_deleted(self, ledger_ids: Sequence[LedgerId], report: CollectorReport) -> None:
        marks: dict[LedgerId, CollectionMark] = {}

        async def check_ledger(ledger_id: LedgerId) -> None:
            mark = self._storage.mark(ledger_id)
            is_deleted = False
            try:
                is_deleted = await self._ledgers.current(ledger_id) is None
            finally:
                if is_deleted:
                    marks[ledger_id] = mark
                else:
                    self._storage.unmark(ledger_id, mark)
            report.kept += not is_deleted

        try:
            for ledger_id in ledger_ids:
                await self._keep_pace()
                await self._counting(report, check_ledger(ledger_id))
            if marks:
                await self._clock.sleep(self._settings.confirm_after_s)
            for ledger_id, mark in marks.items():
                await self._keep_pace()
                await self._counting(report, self._collect_confirmed(ledger_id, mark, report))
        finally:
            for ledger_id, mark in marks.items():
                self._storage.unmark(ledger_id, mark)

    async def _collect_confirmed(self, ledger_id: LedgerId, mark: CollectionMark, report: CollectorReport) -> None:
        self._check_session()
        if not self._storage.is_marked(ledger_id, mark) or await self._ledgers.current(ledger_id) is not None:
            report.kept += 1
            return
        self._check_session()
        if await self._delete(ledger_id, mark, report):
            report.collected_deleted += 1

    async def _delete(self, ledger_id: LedgerId, mark: CollectionMark, report: CollectorReport) -> bool:
        if not await self._storage.collect(ledger_id, mark):
            report.kept += 1
            return False
        await self._storage.clear_limbo(ledger_id)  # "no such entry" is now a correct answer
        return True

    async def _clear_limbo(self, report: CollectorReport) -> None:
        after = -1
        while page := await self._storage.limbo_ids(after, _PAGE):
            after = page[-1]
            for ledger_id, found in zip(page, await self._ledgers.read_many_metadata(page), strict=True):
                if isinstance(found, LedgerMetadata) and await self._is_whole(ledger_id, found):
                    await self._counting(report, self._end_limbo(ledger_id, report))

    async def _is_whole(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> bool:
        """Return whether a ledger is closed, and all of its entries that this bookie should have are here."""
        if not metadata.is_closed:
            return False
        reply = await self._storage.list_entries(ledger_id)
        is_known = reply.status in (Status.OK, Status.LIMBO)
        return is_known and await run_cooperatively(comparing(metadata, self._bookie, reply.entries))

    async def _end_limbo(self, ledger_id: LedgerId, report: CollectorReport) -> None:
        await self._keep_pace()
        current = await self._ledgers.current(ledger_id)
        if current is not None and await self._is_whole(ledger_id, current.metadata):
            self._check_session()
            await self._storage.clear_limbo(ledger_id)
            report.limbo_cleared += 1

    async def _counting(self, report: CollectorReport, work: Awaitable[None]) -> None:
        """Await ``work`` on one ledger. After an error, the ledger is kept and counted as unknown."""
        try:
            await work
        except FatalError:
            raise
        except BkhealError as error:
            _log.info("ledger kept after an error", extra={"error": str(error)})
            report.unknown += 1
            self._check_session()

    async def _keep_pace(self) -> None:
        await self._clock.sleep(1 / self._settings.suspects_per_s)
        self._check_session()

    def _check_session(self) -> None:
        session = self._store.session
        if session.epoch != self._epoch or not session.is_connected:
            raise _PassEndedError(_LOST)
