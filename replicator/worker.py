"""The worker: take tasks while repair is enabled, repair several ledgers at a time, and release all locks at the end.

``queue.task_queue`` lists the tasks in their order, ``queue.places`` limits the turns in flight, and
``repair.ledger_repair`` is one turn. A worker without work is on standby until another worker calls it
(``queue.standby``), so a change does not wake all workers.

Neither a ledger whose repair fails nor a temporarily unreachable store stops the worker. The end of the store's session
cancels all work in flight immediately (S14); the next session begins with a new listing.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import math
from dataclasses import replace
from functools import partial
from typing import Final

from bookie.metadata.bookies.registration import Bookies
from bookie.metadata.port import AccessDeniedError, Session, SessionState
from bookie.metadata.tasks.copy_limits import CopyLimitsStore
from bookie.model.errors import (
    BkhealError,
    ConflictError,
    FatalError,
    OutcomeUnknownError,
    PermanentError,
    TransientError,
)
from bookie.model.ids import BookieId, LedgerId
from bookie.model.topology import Location
from bookie.runtime.retry import GrowingPause
from bookie.runtime.tasks import cancel, guarded
from bookie.runtime.waiting import all_completed, first_of
from replicator.copying.copier import Copier
from replicator.copying.pace import CopyPace
from replicator.copying.pull import Pulls
from replicator.copying.shared_limits import SharedLimits
from replicator.copying.throttle import ByteBudget
from replicator.copying.transfer_slots import TransferSlots
from replicator.knowledge.absence import Absences
from replicator.knowledge.returns import Returns
from replicator.knowledge.store_refusals import REFUSED_PAUSE_S_MAX, STORE_PAUSE_S, StoreRefusals
from replicator.ports import RepairPorts
from replicator.queue.debt_search import DebtSearch
from replicator.queue.grace import GracePeriods
from replicator.queue.places import TurnPlaces
from replicator.queue.standby import Standby, StandbyEnd
from replicator.queue.task_queue import TaskQueue, Turn
from replicator.repair.context import RepairContext
from replicator.repair.lease import Lease, other_node_paths
from replicator.repair.ledger_repair import LedgerRepair
from replicator.settings import ReplicatorSettings
from replicator.telemetry.events import Ending, EventSink, QueueState, TaskResult, WorkerLoad

_log = logging.getLogger(__name__)

IN_FLIGHT_BYTES: Final = 64 << 20
"""The most bytes that are read and not yet stored, over all ledgers in flight."""
RELEASE_TIMEOUT_S: Final = 10.0
"""The time for cancelled work to release its locks. Remaining locks end with the session."""
_ACTIVE: Final = frozenset({StandbyEnd.CALLED, StandbyEnd.OVERDUE})
_TASKS: Final = "the tasks"
_BOOKIES: Final = "the list of bookies"
_LIMITS: Final = "the limits on copying"


class RunEnd(enum.Enum):
    """Why a run ended."""

    STOPPED = "stopped"
    SETTLED = "settled"
    """Only with ``once``: every task is repaired or parked."""
    UNSETTLED = "unsettled"
    """Only with ``once``: some tasks fail repeatedly or cannot be read, or repair is disabled."""


class Worker:
    """The loop that repairs one process's share of the marked ledgers. Call ``run`` once."""

    def __init__(self, ports: RepairPorts, settings: ReplicatorSettings, events: EventSink, owner: str) -> None:
        """Prepare a worker. ``owner`` is the name in its locks, for people to read: usually the host's name."""
        self._ports = ports
        self._settings = settings
        self._events = events
        self._owner = owner
        self._pace = CopyPace(ports.clock, settings.bytes_per_second)
        pulls = Pulls(ports.recent.service_info, ports.clock) if settings.is_pulling else None
        self._copier = Copier(
            transport=ports.transport,
            clock=ports.clock,
            pace=self._pace,
            budget=ByteBudget(IN_FLIGHT_BYTES),
            is_avoided=self._is_avoided,
            slots=TransferSlots(settings.copies_per_bookie),
            locate=self._locate,
            pulls=pulls,
        )
        self._grace_periods = GracePeriods(ports.clock, settings.open_ledger_grace_s)
        self._absences = Absences(ports)
        returns = Returns(ports.clock)
        self._context = RepairContext(ports, self._copier, events, self._grace_periods, self._absences, returns)
        self._queue = TaskQueue(ports, settings.poll_interval_s, self._grace_periods, self._absences)
        self._places = TurnPlaces(self._queue, settings.ledgers_in_flight)
        self._refusals = StoreRefusals(ports.clock)
        self._debts = DebtSearch(ports, self._absences, self._refusals, self._list_again)
        self._standby = Standby(ports.store, ports.standby, ports.clock, ports.rng)
        self._is_active = False
        """Whether this worker left standby and looks for work by itself."""
        self._watchers: list[asyncio.Task[None]] = []
        """The watches on the bookies and on the switch, while this worker is active or watches for others."""
        self._running: dict[LedgerId, asyncio.Task[None]] = {}
        self._stop = asyncio.Event()
        self._wake = asyncio.Event()
        """Set to make the loop check the tasks immediately: a repair ended, the session or the bookies changed, or
        ``stop`` was called."""
        self._unreleased: list[Lease] = []
        self._limits = SharedLimits(CopyLimitsStore(ports.store, ports.cluster.root), ports, self._pace, owner)
        self._fatal: FatalError | None = None

    def load(self) -> WorkerLoad:
        """Return the current load."""
        return WorkerLoad(
            ledgers_in_flight=len(self._running),
            bytes_in_flight=self._copier.budget.held_bytes,
            bytes_per_second=self._pace.bytes_per_second,
            copied_entries=self._copier.copied_entries,
            copied_bytes=self._copier.copied_bytes,
            throttled_s=self._pace.waited_s,
            unreachable_bookies=self._ports.circuits.open_count,
            pulled_bytes=self._copier.pulled_bytes,
            placement_debts=self._debts.debts,
        )

    @property
    def problem(self) -> str:
        """The data that this process is not permitted to read, with the reasons; empty if none. Safe in any thread."""
        refused = {**self._refusals.reasons, **({_LIMITS: limits} if (limits := self._limits.problem) else {})}
        return "; ".join(f"{what}: {why}" for what, why in refused.items())

    def set_rate(self, bytes_per_second: int) -> None:
        """Change the copy rate (0: unlimited), starting with the next batch.

        Requests to read and to add are limited separately (``CopyPace``).

        Raises:
            ValueError: the rate is negative.
        """
        self._pace.set_rate(bytes_per_second)

    def stop(self) -> None:
        """Take no more tasks, and cancel the repairs in flight after the grace period. Idempotent."""
        self._stop.set()
        self._wake.set()

    async def run(self) -> RunEnd:
        """Work until ``stop``, or with ``once`` until every task is settled.

        Raises:
            FatalError: bkheal's code violated one of its own rules; all work was cancelled and all locks released.
            PermanentError: only with ``once``: the store refused a necessary request.
        """
        watches = [
            guarded("session watch", self._watch_session()),
            guarded("copy limits", self._limits.follow()),
        ]
        try:
            end = await self._dispatch()
            await self._finish(0.0 if self._fatal is not None else self._settings.grace_s)
        finally:
            for watch in watches:
                await cancel(watch)
            await self._debts.stop()
            await self._end_watches()
            self._abandon()
            await self._finish(RELEASE_TIMEOUT_S)
            await self._standby.leave()
        if self._fatal is not None:
            raise self._fatal
        return end

    async def _dispatch(self) -> RunEnd:
        pauses = GrowingPause(STORE_PAUSE_S, REFUSED_PAUSE_S_MAX)
        while not self._stop.is_set():
            self._wake.clear()
            try:
                end = await self._step()
            except (TransientError, OutcomeUnknownError, ConflictError) as error:
                _log.warning("listing failed, trying again", extra={"error": str(error)})
                await first_of([self._wake.wait(), self._ports.clock.sleep(STORE_PAUSE_S)])
                continue
            except PermanentError as error:
                if self._settings.once:
                    raise
                await first_of([self._stop.wait(), self._refusals.pause(_TASKS, error, pauses.next_pause_s())])
                continue
            pauses.reset()
            if end is not None:
                return end
        return RunEnd.STOPPED

    async def _step(self) -> RunEnd | None:
        """List the tasks if necessary, start turns, and wait for a change."""
        session = self._ports.store.session
        if not session.is_connected:
            await self._wait_connected(session)
            return None
        await self._wait_for_work()
        if self._stop.is_set():
            return None
        await self._retry_releases()
        if await self._ports.recent.is_disabled():
            return await self._wait_enabled()
        if is_listed := self._queue.is_stale:
            if self._settings.once:
                await self._debts.search()  # before the listing, which then contains its marks
            await self._queue.refresh()
            self._debts.follow(is_watching=self._standby.is_watching and not self._settings.once)
            self._events.tasks_listed(self._queue.queue_state)
        self._refusals.clear(_TASKS)
        self._start_turns()
        if is_listed:
            await self._standby.call(math.ceil(len(self._queue) / self._places.large_places))
        if (
            self._settings.once
            and not self._running
            and not self._queue.is_stale
            and self._queue.queue_state.is_settled
        ):
            return await self._check_once_ended()
        if not self._running and (self._queue.is_stale or (self._is_active and self._queue.is_idle)):
            return None
        changes = [
            self._wake.wait(),
            self._queue.wait_first_task(),
            self._ports.clock.sleep(self._queue.seconds_until_stale),
        ]
        await first_of(changes)
        return None

    async def _wait_connected(self, session: Session) -> None:
        """Wait for a change of the session, during which the tasks count as unknown: others may end them."""
        self._events.tasks_listed(QueueState())
        await first_of([self._ports.store.wait_session_changed(session), self._wake.wait()])
        now = self._ports.store.session
        if now.is_connected and now.epoch == session.epoch:
            self._events.tasks_listed(self._queue.queue_state)

    async def _wait_enabled(self) -> RunEnd | None:
        """Wait while repair is disabled; with ``once``, end the run instead."""
        if self._settings.once and not self._running:
            _log.warning("repair is disabled cluster-wide, nothing was done; enable it and run again")
            return RunEnd.UNSETTLED
        self._refusals.clear(_TASKS)
        self._events.tasks_listed(QueueState())
        changes = [self._ports.tasks.switches.wait_enabled(), self._wake.wait()]
        if self._unreleased:
            changes.append(self._ports.clock.sleep(STORE_PAUSE_S))
        await first_of(changes)
        self._queue.mark_stale()  # the tasks were not watched since
        return None

    async def _check_once_ended(self) -> RunEnd | None:
        """Return how a run with ``once`` ended; None for another round, if the search for debts may succeed then."""
        error = self._debts.error
        if error is None or isinstance(error, PermanentError):
            unreadable = self._queue.unreadable_tasks
            if unreadable:
                _log.warning("tasks cannot be read, so their ledgers are not repaired", extra={"tasks": unreadable})
            is_settled = error is None and not self._queue.queue_state.given_up and not unreadable
            return RunEnd.SETTLED if is_settled else RunEnd.UNSETTLED
        await first_of([self._wake.wait(), self._ports.clock.sleep(STORE_PAUSE_S)])
        self._queue.mark_stale()
        return None

    def _list_again(self) -> None:
        """Make the loop list the tasks again, because an event may have made other tasks possible or unnecessary."""
        self._queue.mark_stale()
        self._wake.set()

    async def _wait_for_work(self) -> None:
        """Wait on standby if this worker has no work.

        A run with ``once`` is never on standby, and a watching worker looks for work for all others.
        """
        is_needed = self._settings.once or self._running or self._unreleased
        if not is_needed and not (self._standby.is_watching and self._standby.has_standby_node):
            if self._is_active and not self._queue.is_idle:
                return
            await self._end_watches()
            self._is_active = False
            end = await self._standby.wait(self._stop, self._forget_observations)
            self._is_active = end in _ACTIVE
            self._ports.recent.forget()
        if not self._watchers:
            self._watchers = [
                guarded("bookie watch", self._watch_bookies()),
                guarded("switch watch", self._watch_switch()),
            ]

    def _forget_observations(self) -> None:
        """Forget all observations, because a worker on standby sees no changes."""
        self._queue.forget()
        self._debts.forget()
        self._events.tasks_listed(self._queue.queue_state)

    async def _end_watches(self) -> None:
        watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            await cancel(watcher)

    def _start_turns(self) -> None:
        while not self._stop.is_set():
            passed_over = self._places.kinds_to_pass_over()
            if passed_over is None:
                return
            turn = self._queue.take(passed_over)
            assert turn is not None, "there is a next task"
            if turn.ledger_id not in self._running:
                self._places.take(turn)
                work = guarded(f"repair of ledger {turn.ledger_id}", self._work(turn))
                self._running[turn.ledger_id] = work
                work.add_done_callback(partial(self._ended, turn.ledger_id))

    def _ended(self, ledger_id: LedgerId, work: asyncio.Task[None]) -> None:
        del self._running[ledger_id]
        self._places.free(ledger_id)
        self._wake.set()

    async def _work(self, turn: Turn) -> None:
        """Run one task's turn, from lock to release. A failure does not affect other tasks."""
        started_s = self._ports.clock.monotonic_s()
        try:
            result = await self._repair(turn)
        except FatalError as error:
            self._fatal = error
            self.stop()
            return
        except Exception as error:  # noqa: BLE001 (task boundary: one bad ledger must not end the worker)
            result = _failure(turn, error)
        self._queue.settle(turn, result.ending)
        self._events.task_ended(replace(result, seconds=self._ports.clock.monotonic_s() - started_s))

    async def _repair(self, turn: Turn) -> TaskResult:
        lease = await self._lock(turn.ledger_id)
        if lease is None:
            return TaskResult(turn.ledger_id, Ending.BUSY)
        try:
            other_nodes = lease.other_nodes
            if other_nodes is not None and self._queue.is_outdated(turn, other_nodes.parked, other_nodes.failure):
                return TaskResult(turn.ledger_id, Ending.BUSY)
            try:
                result = await LedgerRepair(self._context, lease, turn).run()
            except FatalError:
                raise
            except Exception as error:  # noqa: BLE001 (task boundary: as in ``_work``, with the lock still held)
                result = _failure(turn, error)
            if result.ending is Ending.FAILED and self._ports.store.session.is_connected:
                await self._queue.note_failure(turn)
            return result
        finally:
            await self._release(lease)

    async def _lock(self, ledger_id: LedgerId) -> Lease | None:
        epoch = self._ports.store.session.epoch
        try:
            other_nodes = other_node_paths(self._ports, ledger_id)
            held = await self._ports.tasks.locks.lock(ledger_id, self._owner, other_nodes)
        except (TransientError, OutcomeUnknownError):
            self._queue.note_lock_answer(ledger_id, is_settled=False)
            raise
        self._queue.note_lock_answer(ledger_id, is_settled=True)
        return None if held is None else Lease(self._ports, held, epoch)

    async def _release(self, lease: Lease) -> None:
        if not await lease.release():
            self._unreleased.append(lease)

    async def _retry_releases(self) -> None:
        """Retry failed releases, and settle locks whose creation was not answered."""
        leases, self._unreleased = self._unreleased, []
        for lease in leases:
            await self._release(lease)
        for ledger_id in self._queue.unmarked_locks - self._running.keys():
            try:
                settled = await self._lock(ledger_id)  # this leaves no lock, unless the ledger was marked again
            except (TransientError, OutcomeUnknownError) as error:
                _log.info(
                    "the outcome of a lock request is not known yet",
                    extra={"ledger_id": ledger_id, "error": str(error)},
                )
                return
            if settled is not None:
                await self._release(settled)

    async def _watch_session(self) -> None:
        store = self._ports.store
        known: Session = store.session
        while True:
            session = await store.wait_session_changed(known)
            self._absences.note_outage()
            self._ports.recent.forget()
            if session.state is SessionState.LOST or session.epoch != known.epoch:
                _log.warning("session with the store ended, all work is released", extra={"epoch": known.epoch})
                self._abandon()
                self._queue.mark_stale()
            known = session
            self._wake.set()

    async def _watch_bookies(self) -> None:
        """List the tasks again when registrations change, because other tasks may then be possible or unnecessary."""
        seen: Bookies | None = None
        pauses = GrowingPause(STORE_PAUSE_S, REFUSED_PAUSE_S_MAX)
        while True:
            try:
                if seen is None:
                    seen = await self._ports.registrations.list()
                    if self._refusals.clear(_BOOKIES):  # the list may have changed while it could not be read
                        self._list_again()
                seen = await self._ports.registrations.wait_changed(seen)
                self._ports.circuits.keep_only(seen.registered)
            except TransientError:
                await self._ports.clock.sleep(STORE_PAUSE_S)
                continue
            except PermanentError as error:
                seen = None
                await self._refusals.pause(_BOOKIES, error, pauses.next_pause_s())
                continue
            pauses.reset()
            self._ports.recent.note_bookies_changed()
            self._absences.note_bookies_changed()
            if self._settings.once or self._standby.is_watching:  # a watching worker calls the others if there is work
                self._list_again()

    async def _watch_switch(self) -> None:
        """When auto-recovery is enabled or disabled, make the next chunk read the switch again (S7)."""
        recent = self._ports.recent
        while True:
            try:
                await self._ports.tasks.switches.wait_switched(is_disabled=await recent.is_disabled())
            except BkhealError as error:  # without a watch, the cached state of the switch expires soon
                _log.info("the switch of auto-recovery cannot be watched now", extra={"error": str(error)})
                await self._ports.clock.sleep(STORE_PAUSE_S)
            recent.note_switched()

    def _abandon(self) -> None:
        for work in self._running.values():
            work.cancel()

    async def _finish(self, seconds: float) -> None:
        """Wait up to ``seconds`` for the work in flight to end."""
        if self._running and seconds > 0:
            await first_of([all_completed(self._running.values()), self._ports.clock.sleep(seconds)])

    def _is_avoided(self, bookie: BookieId) -> bool:
        return self._ports.circuits.is_avoided(bookie, self._ports.clock.monotonic_s())

    def _locate(self, bookie: BookieId) -> Location:
        return self._ports.placement.topology.location_of(bookie)


def _failure(turn: Turn, error: Exception) -> TaskResult:
    is_expected = isinstance(error, (TransientError, OutcomeUnknownError, AccessDeniedError))
    extra = {"ledger_id": turn.ledger_id, "error": str(error)}
    _log.warning("repair failed", extra=extra, exc_info=None if is_expected else error)
    return TaskResult(turn.ledger_id, Ending.FAILED, detail=f"{type(error).__name__}: {error}")
