"""A writer's entries between admission and acknowledgement: batches to each bookie, and the handling of their answers.

The bookkeeping is in ``state``, the handling of failures in ``failover``; this module sends batches. An error without a
remedy fails the whole pipeline: the outcome of every entry without an acknowledgement is then unknown, and no further
entry is acknowledged.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from bookie.client.errors import (
    AddOutcomeUnknownError,
    AddQuorumTimeoutError,
    LedgerDeletedError,
    LedgerFencedError,
    WrongPasswordError,
)
from bookie.client.options import WriterOptions
from bookie.client.ports import ClientPorts
from bookie.client.writer.failover import Failover
from bookie.client.writer.state import Lane, PendingAdd, WriterState
from bookie.metadata.ledgers.ledgers import NoSuchLedgerError, Versioned
from bookie.model.errors import BkhealError, PermanentError
from bookie.model.ids import BookieId, EntryId
from bookie.runtime.fault_points import fault_point
from bookie.runtime.tasks import cancel_all, guarded
from bookie.wire.port import BATCH_ENTRIES_MAX, AddBatch, AddReply, Status

_EARLY_TIMEOUT_S: Final = 0.001
"""Deadline of an add at a fault point of simulations; short on purpose."""

Waiter = asyncio.Future[EntryId]
_Pending = PendingAdd[Waiter]
_Lane = Lane[Waiter]


class Pipeline:
    """The unfinished entries of one writer.

    Attributes:
        state: the state of each entry.
        error: the error with which the pipeline failed, if it did.
        on_failure: a function that is called once when the pipeline fails.
    """

    def __init__(
        self,
        ports: ClientPorts,
        ledger: Versioned,
        key: bytes,
        options: WriterOptions,
        incarnations: Mapping[BookieId, str],
    ) -> None:
        metadata = ledger.metadata
        self.state: WriterState[Waiter] = WriterState(
            metadata.last_fragment.members,
            metadata.write_quorum,
            metadata.ack_quorum,
            incarnations=incarnations,
            is_patient=options.is_ensemble_change_delayed,
        )
        self.error: BkhealError | None = None
        self.on_failure: Callable[[], None] | None = None
        self._ports = ports
        self._key = key
        self._failover = Failover(ports, self.state, ledger, options, self)
        self._changed = asyncio.Event()
        self._tasks: dict[asyncio.Task[None], None] = {}  # a dict: tasks are cancelled in a fixed order
        self._is_stopping = False
        self._is_pump_due = False
        self._timeout: QuorumTimeout | None = None
        if options.add_quorum_timeout_s is not None:
            self._timeout = QuorumTimeout(options.add_quorum_timeout_s)
            self.start("add quorum timeout", self._watch_timeout(self._timeout))

    def admit(self, packet: bytes, payload_bytes: int, waiter: Waiter) -> None:
        """Accept the next entry; ``waiter`` is completed when it is acknowledged."""
        self.state.admit(packet, payload_bytes, waiter)
        # Sending in the next loop iteration lets a burst of appends share a batch, and does not delay a single append.
        if not self._is_pump_due:
            self._is_pump_due = True
            asyncio.get_running_loop().call_soon(self._pump)

    @property
    def ledger(self) -> Versioned:
        """The metadata as last stored or read."""
        return self._failover.ledger

    @ledger.setter
    def ledger(self, stored: Versioned) -> None:
        self._failover.ledger = stored

    @property
    def has_room(self) -> bool:
        """Whether another entry may be admitted.

        In a large ensemble, entries can have all their copies and still wait for the acknowledgement of an earlier one.
        """
        state, settings = self.state, self._ports.settings
        unconfirmed_bytes = state.next_length - state.confirmed_length
        unconfirmed_entries = state.next_entry_id - 1 - state.last_add_confirmed
        return (
            max(state.unsettled_bytes, unconfirmed_bytes) < settings.pipeline_bytes_max
            and max(state.unsettled_entries, unconfirmed_entries) < settings.pipeline_entries_max
        )

    async def wait_room(self) -> None:
        """Wait until there is room, or the pipeline has failed."""
        while not self.has_room and self.error is None:
            await self._wait_changed()

    async def wait_drained(self) -> None:
        """Wait until nothing is under way any more, or the pipeline has failed."""
        while (self._failover.is_busy or not self.state.is_drained) and self.error is None:
            await self._wait_changed()

    def fail(self, error: BkhealError) -> None:
        """Fail every entry without an acknowledgement. Of several errors, the first one is kept."""
        is_first, self.error = self.error is None, self.error or error
        self._failover.stop()
        for pending in self.state.abandon():
            report_outcome_unknown(pending.waiter, self.outcome_unknown_error())
        self._changed.set()
        if is_first and self.on_failure is not None:
            self.on_failure()

    def outcome_unknown_error(self) -> AddOutcomeUnknownError:
        """Return the error of an entry after the failure: a new one, because its traceback grows with each raise."""
        why = f"the writer of ledger {self.ledger.ledger_id} failed: {self.error}"
        doubt: AddOutcomeUnknownError
        if isinstance(self.error, LedgerFencedError):
            doubt = LedgerFencedError(why)
        elif isinstance(self.error, NoSuchLedgerError):
            doubt = LedgerDeletedError(f"{why}; it was deleted while it was written")
        elif isinstance(self.error, AddQuorumTimeoutError):
            doubt = AddQuorumTimeoutError(why)
        else:
            doubt = AddOutcomeUnknownError(
                f"{why}; entries after {self.state.last_add_confirmed} may or may not be stored; "
                "close the ledger and read its end"
            )
        doubt.__cause__ = self.error
        return doubt

    async def stop(self) -> None:
        """Cancel every task. Only for a pipeline that is drained or has failed."""
        self._is_stopping = True
        while tasks := [task for task in self._tasks if not task.done()]:  # one that ends now may start another one
            await cancel_all(tasks)

    def resume(self) -> None:
        """Acknowledge and send everything possible after a change of the ensemble."""
        self._complete(self.state.confirm())
        self._pump()
        self._changed.set()

    async def _wait_changed(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def start(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run ``work`` in the background until it ends or the pipeline stops; if it fails, so does the pipeline."""
        task = guarded(name, work)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Fail the pipeline if a task ended early, because it left entries without an outcome."""
        self._tasks.pop(task, None)
        if self._is_stopping and task.cancelled():
            return
        why = asyncio.CancelledError() if task.cancelled() else task.exception()
        if why is not None:
            self.fail(AddOutcomeUnknownError(f"{task.get_name()} ended early: {why!r}"))

    def _pump(self) -> None:
        self._is_pump_due = False
        limit = self._ports.settings.batches_in_flight_max
        if self._timeout is not None:
            self._timeout.admitted(self.state.next_entry_id, self._ports.clock.monotonic_s())
        if fault_point("writer.force_ensemble_change"):
            self._failover.fail_healthy_lane()
        for lane in self.state.lanes:
            while lane.queue and len(lane.in_flight) < limit and not lane.is_failed:
                entries_max = 1 if fault_point("writer.tiny_batch") else BATCH_ENTRIES_MAX
                self.start("send batch", self._send(lane, lane.take_batch(entries_max)))
        if self.state.has_failed_lanes:
            self._failover.handle_failures()

    async def _send(self, lane: _Lane, batch: list[_Pending]) -> None:
        reply = await self._offer(
            lane,
            AddBatch(
                self.ledger.ledger_id, self._key, [pending.packet for pending in batch], incarnation=lane.incarnation
            ),
        )
        if reply.status is Status.OK:
            self._complete(self.state.acknowledge(lane, batch))
        elif self.state.is_current(lane):
            self._refused(lane, reply)
        self._pump()
        self._changed.set()

    async def _offer(self, lane: _Lane, batch: AddBatch) -> AddReply:
        settings = self._ports.settings
        deadline_s = _EARLY_TIMEOUT_S if fault_point("writer.early_timeout") else settings.add_timeout_s
        reply = await self._ports.transport.add(lane.bookie, batch, deadline_s)
        pause_s = settings.busy_backoff_s
        for _ in range(settings.busy_retries_max - 1):
            if reply.status is not Status.TOO_MANY_REQUESTS or not self.state.is_current(lane):
                break
            await self._ports.clock.sleep(pause_s * (1 + self._ports.rng.random()) / 2)
            pause_s = min(2 * pause_s, settings.busy_backoff_max_s)
            reply = await self._ports.transport.add(lane.bookie, batch, settings.add_timeout_s)
        return reply

    def _complete(self, confirmed: list[_Pending]) -> None:
        for pending in confirmed:
            if not pending.waiter.done():
                pending.waiter.set_result(pending.entry_id)

    def _refused(self, lane: _Lane, reply: AddReply) -> None:
        where = f"bookie {lane.bookie} refused adds to ledger {self.ledger.ledger_id}"
        match reply.status:
            case Status.FENCED if not lane.is_new:  # otherwise R160
                self.fail(LedgerFencedError(f"{where}: fenced, another client recovers the ledger"))
            case Status.UNAUTHORIZED:
                self.fail(WrongPasswordError(f"{where}: wrong password, or no login although the bookie requires one"))
            case Status.BAD_REQUEST:
                self.fail(PermanentError(f"{where}: {reply.detail or 'bad request'}"))
            case _:
                self._failover.fail_lane(lane, reply.status, reply.detail)

    async def _watch_timeout(self, timeout: QuorumTimeout) -> None:
        clock = self._ports.clock
        while self.error is None:
            now_s = clock.monotonic_s()
            due_s = timeout.due_s(self.state.last_add_confirmed)
            if due_s is not None and due_s <= now_s:
                entry_id = self.state.last_add_confirmed + 1
                self.fail(
                    AddQuorumTimeoutError(f"entry {entry_id} was not acknowledged within {timeout.timeout_s:g} s")
                )
                return
            await clock.sleep(timeout.timeout_s if due_s is None else due_s - now_s)


class QuorumTimeout:
    """Detects entries that wait for longer than ``timeout_s``."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._bursts: deque[tuple[int, float]] = deque()
        """Pairs of the exclusive end of a burst's entry ids and the time of its admission, ascending."""
        self._end = 0

    def admitted(self, end: int, now_s: float) -> None:
        """Record the admission of every entry before ``end``."""
        if end > self._end:
            self._bursts.append((end, now_s))
            self._end = end

    def due_s(self, last_add_confirmed: int) -> float | None:
        """Return when the oldest entry after ``last_add_confirmed`` has waited too long; None if there is none."""
        bursts = self._bursts
        while bursts and bursts[0][0] <= last_add_confirmed + 1:
            bursts.popleft()
        return bursts[0][1] + self.timeout_s if bursts else None


def report_outcome_unknown(waiter: Waiter, doubt: AddOutcomeUnknownError) -> None:
    """Report an unknown outcome to the caller that waits for an entry."""
    if not waiter.done():
        waiter.set_exception(doubt)
        waiter.exception()  # an application may drop the future; that is not an unhandled error
