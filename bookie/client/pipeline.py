"""A writer's entries between admission and acknowledgement: batches to each bookie, and ensemble change on failure.

The bookkeeping is ``writer_state``; this module moves batches. What no ensemble change mends fails the pipeline as a
whole: everything not acknowledged is in doubt from then on, and nothing is acknowledged after it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Final

from bookie.client.ensemble_change import EnsembleChange
from bookie.client.errors import AddOutcomeUnknownError, LedgerFencedError, WrongPasswordError
from bookie.client.ports import ClientPorts
from bookie.client.writer_state import Lane, PendingAdd, WriterState
from bookie.metadata.ledgers import Versioned
from bookie.model.errors import BkhealError, PermanentError
from bookie.model.ids import BookieId, EntryId
from bookie.runtime.tasks import cancel, guarded
from bookie.wire.port import AddBatch, AddReply, Status

_log: Final = logging.getLogger(__name__)

Waiter = asyncio.Future[EntryId]
_Pending = PendingAdd[Waiter]
_Lane = Lane[Waiter]


class Pipeline:
    """The unfinished entries of one writer.

    Attributes:
        ledger: metadata as last stored or read.
        state: what is known about each entry.
        error: what made the pipeline fail, if it did.
    """

    def __init__(self, ports: ClientPorts, ledger: Versioned, key: bytes) -> None:
        metadata = ledger.metadata
        self.ledger = ledger
        self.state: WriterState[Waiter] = WriterState(
            metadata.last_fragment.members, metadata.write_quorum, metadata.ack_quorum
        )
        self.error: BkhealError | None = None
        self._ports = ports
        self._key = key
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._change: asyncio.Task[None] | None = None
        self._is_pump_due = False
        self._failed_at_s: dict[BookieId, float] = {}

    def admit(self, packet: bytes, payload_bytes: int) -> Waiter:
        """Take the next entry and return the future of its acknowledgement."""
        waiter: Waiter = asyncio.get_running_loop().create_future()
        self.state.admit(packet, payload_bytes, waiter)
        # Pumping on the next turn lets a burst of appends share a batch, and adds no delay to a lone one.
        if not self._is_pump_due:
            self._is_pump_due = True
            asyncio.get_running_loop().call_soon(self._pump)
        return waiter

    @property
    def has_room(self) -> bool:
        """Whether another entry may be admitted."""
        state, settings = self.state, self._ports.settings
        return (
            state.unsettled_bytes < settings.pipeline_bytes_max
            and state.unsettled_entries < settings.pipeline_entries_max
        )

    async def wait_room(self) -> None:
        """Return once there is room, or the pipeline has failed."""
        while not self.has_room and self.error is None:
            await self._wait_changed()

    async def wait_drained(self) -> None:
        """Return once nothing is under way any more, or the pipeline has failed."""
        while not self.state.is_drained and self.error is None:
            await self._wait_changed()

    def fail(self, error: BkhealError) -> None:
        """Give up everything not acknowledged. Of several errors the first one stands."""
        if self.error is None:
            self.error = error
        if self._change is not None and self._change is not asyncio.current_task():
            self._change.cancel()
        for pending in self.state.abandon():
            if not pending.waiter.done():
                pending.waiter.set_exception(self.in_doubt())
                pending.waiter.exception()  # an application may drop the future; that is no unhandled error
        self._changed.set()

    def in_doubt(self) -> AddOutcomeUnknownError:
        """What to tell about an entry after the failure; a new error each time, as raising one makes it grow."""
        why = f"the writer of ledger {self.ledger.ledger_id} failed: {self.error}"
        if isinstance(self.error, LedgerFencedError):
            doubt: AddOutcomeUnknownError = LedgerFencedError(why)
        else:
            doubt = AddOutcomeUnknownError(
                f"{why}; entries after {self.state.last_add_confirmed} may or may not be stored; "
                "close the ledger and read its end"
            )
        doubt.__cause__ = self.error
        return doubt

    async def stop(self) -> None:
        """End every task. Only for a pipeline that is drained or has failed."""
        for task in list(self._tasks):
            await cancel(task)

    async def _wait_changed(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _start(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = guarded(name, work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A task that ended early leaves entries that nobody would ever settle."""
        self._tasks.discard(task)
        why = asyncio.CancelledError() if task.cancelled() else task.exception()
        if why is not None:
            self.fail(AddOutcomeUnknownError(f"{task.get_name()} ended early: {why!r}"))

    def _pump(self) -> None:
        self._is_pump_due = False
        limit = self._ports.settings.batches_in_flight_max
        for lane in self.state.lanes:
            while lane.queue and len(lane.in_flight) < limit and not lane.is_failed:
                self._start("send batch", self._send(lane, lane.take_batch()))
        if self.state.has_failed_lanes:
            self._start_change()

    async def _send(self, lane: _Lane, batch: list[_Pending]) -> None:
        reply = await self._offer(lane, [pending.packet for pending in batch])
        if reply.status is Status.OK:
            self._complete(self.state.acknowledge(lane, batch))
        elif self.state.is_current(lane):
            self._refused(lane, reply)
        self._pump()
        self._changed.set()

    async def _offer(self, lane: _Lane, packets: list[bytes]) -> AddReply:
        settings = self._ports.settings
        batch = AddBatch(self.ledger.ledger_id, self._key, packets)
        for _ in range(settings.busy_retries_max):
            reply = await self._ports.transport.add(lane.bookie, batch, settings.add_timeout_s)
            if reply.status is not Status.TOO_MANY_REQUESTS:
                break
            await self._ports.clock.sleep(settings.busy_backoff_s)
        return reply

    def _complete(self, confirmed: list[_Pending]) -> None:
        for pending in confirmed:
            if not pending.waiter.done():
                pending.waiter.set_result(pending.entry_id)

    def _refused(self, lane: _Lane, reply: AddReply) -> None:
        where = f"bookie {lane.bookie} refused adds to ledger {self.ledger.ledger_id}"
        match reply.status:
            case Status.FENCED:
                self.fail(LedgerFencedError(f"{where}: fenced, another client recovers the ledger"))
            case Status.UNAUTHORIZED:
                self.fail(WrongPasswordError(f"{where}: wrong password"))
            case Status.BAD_REQUEST:
                self.fail(PermanentError(f"{where}: {reply.detail or 'bad request'}"))
            case _:
                self._give_up(lane, reply)

    def _give_up(self, lane: _Lane, reply: AddReply) -> None:
        extra = {"ledger_id": self.ledger.ledger_id, "bookie_id": lane.bookie, "status": reply.status.name}
        _log.info("bookie given up", extra=extra)
        self._failed_at_s[lane.bookie] = self._ports.clock.monotonic_s()
        self.state.fail(lane)

    def _start_change(self) -> None:
        if self.state.is_changing or self.error is not None or not self.state.needs_change:
            return
        self.state.is_changing = True
        self._change = self._start("ensemble change", self._run_change())

    async def _run_change(self) -> None:
        try:
            self.ledger = await EnsembleChange(self._ports, self.state, self._failed_at_s).run(self.ledger)
        except BkhealError as error:
            self.fail(error)
            return
        self.state.is_changing = False
        self._complete(self.state.confirm())
        self._pump()
        self._changed.set()
