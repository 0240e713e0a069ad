"""The circuits of bookies that do not answer one process, and a transport that fails at once if a circuit is open.

A bookie can be registered and not answer: its machine hangs, or a network path drops packets. Then each request takes
its whole deadline, for one ledger after another. After ``SILENCES_MAX`` consecutive requests without an answer, the
*circuit* of the bookie is open: a request fails at once with UNREACHABLE. From time to time one request is sent as a
probe. The first answer closes the circuit.

UNREACHABLE means "unknown", never "absent" (S6). So an open circuit can delay a repair, but cannot change its result.

A circuit belongs to a process, not to a ledger. It is neither shared nor stored, because another process may reach the
bookie.

Source: R42, docs/failure-model.md#R42.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Final

from typing_extensions import override

from bookie.model.ids import BookieId
from bookie.runtime.clock import Clock
from bookie.wire.port import AddBatch, AddReply, Failed, ReadReply, Reply, ReplyT, Request, Status, Transport

_log = logging.getLogger(__name__)

SILENCES_MAX: Final = 3
"""Number of consecutive requests without an answer that open a circuit; one or two may be lost with a connection."""
SILENCE_S: Final = 1.0
"""A failure in less than this time proves nothing: a bookie that restarts refuses connections for a moment."""
SLOW_S: Final = 3.0
"""A request that its caller cancelled after this time or more counts as one without an answer."""
PROBE_PAUSE_S: Final = 1.0
PROBE_PAUSE_S_MAX: Final = 30.0
"""The first and the longest pause between probes. Each pause is twice the one before."""
PROBE_TIMEOUT_S: Final = 5.0
"""Deadline of the first probes, which are frequent. A later one waits as long as the pause before it, up to its
caller's deadline: a bookie that is slow but works must not remain excluded."""
_NO_ANSWER_STATUSES: Final = frozenset({Status.TIMEOUT, Status.UNREACHABLE})
_LOCAL_STATUSES: Final = _NO_ANSWER_STATUSES | {Status.UNRESOLVED, Status.UNSUPPORTED}
"""Statuses that do not prove an answer from the bookie."""


class Admission(enum.Enum):
    """The decision about a request."""

    SENT = "sent"
    PROBE = "probe"
    """The request is sent with a short deadline, and the caller must report its end."""
    REFUSED = "refused"


@dataclass(slots=True)
class _Circuit:
    silences: int = 0
    pause_s: float = 0.0
    """0: the circuit is closed."""
    next_probe_s: float = 0.0
    is_probing: bool = False

    @property
    def is_open(self) -> bool:
        return self.pause_s > 0

    def is_probe_due(self, now_s: float) -> bool:
        return not self.is_probing and now_s >= self.next_probe_s


class Circuits:
    """The circuits of all bookies. This class only decides; ``CircuitTransport`` sends requests and reports outcomes.

    It has a record for each bookie whose last request had no answer, and for no other.
    """

    def __init__(self) -> None:
        self._circuits: dict[BookieId, _Circuit] = {}

    @property
    def open_count(self) -> int:
        """The number of open circuits."""
        return sum(circuit.is_open for circuit in self._circuits.values())

    def is_avoided(self, bookie: BookieId, now_s: float) -> bool:
        """Whether a request to the bookie would fail at once; callers should then try another bookie first."""
        circuit = self._circuits.get(bookie)
        return circuit is not None and circuit.is_open and not circuit.is_probe_due(now_s)

    def avoided(self, bookies: Collection[BookieId], now_s: float) -> frozenset[BookieId]:
        """Return those of ``bookies`` that ``is_avoided``."""
        return frozenset(bookie for bookie in self._circuits if bookie in bookies and self.is_avoided(bookie, now_s))

    def admit(self, bookie: BookieId, now_s: float) -> Admission:
        """Decide whether a request is sent now."""
        circuit = self._circuits.get(bookie)
        if circuit is None or not circuit.is_open:
            return Admission.SENT
        if not circuit.is_probe_due(now_s):
            return Admission.REFUSED
        circuit.is_probing = True
        return Admission.PROBE

    def probe_timeout_s(self, bookie: BookieId) -> float:
        """Return the deadline of a probe, in seconds."""
        circuit = self._circuits.get(bookie)
        return PROBE_TIMEOUT_S if circuit is None else max(PROBE_TIMEOUT_S, circuit.pause_s)

    def answered(self, bookie: BookieId) -> None:
        """Record an answer of the bookie to any request."""
        circuit = self._circuits.pop(bookie, None)
        if circuit is not None and circuit.is_open:
            _log.info("bookie answers again", extra={"bookie_id": bookie})

    def record_unanswered(self, bookie: BookieId, now_s: float) -> None:
        """Record a request without an answer, other than a probe."""
        circuit = self._circuits.setdefault(bookie, _Circuit())
        circuit.silences += 1
        if circuit.silences >= SILENCES_MAX and not circuit.is_open:
            circuit.pause_s = PROBE_PAUSE_S
            circuit.next_probe_s = now_s + PROBE_PAUSE_S
            _log.warning("bookie does not answer, its circuit is open", extra={"bookie_id": bookie})

    def probe_failed(self, bookie: BookieId, now_s: float) -> None:
        """Record a probe without an answer."""
        circuit = self._circuits.get(bookie)
        if circuit is not None:
            circuit.is_probing = False
            circuit.pause_s = min(2 * circuit.pause_s, PROBE_PAUSE_S_MAX)
            circuit.next_probe_s = now_s + circuit.pause_s

    def probe_cancelled(self, bookie: BookieId) -> None:
        """Record a probe without a result; the next request may be a probe."""
        circuit = self._circuits.get(bookie)
        if circuit is not None:
            circuit.is_probing = False

    def keep_only(self, registered: Collection[BookieId]) -> None:
        """Forget every unregistered bookie: nothing waits for its answer, and it may return repaired."""
        for bookie in [bookie for bookie in self._circuits if bookie not in registered]:
            if self._circuits.pop(bookie).is_open:
                _log.info("bookie that did not answer is not registered any more", extra={"bookie_id": bookie})


class CircuitTransport(Transport):
    """Another transport, except that requests to a bookie with an open circuit fail at once."""

    def __init__(self, transport: Transport, circuits: Circuits, clock: Clock) -> None:
        self._transport = transport
        self._circuits = circuits
        self._clock = clock

    @override
    async def add(self, bookie: BookieId, batch: AddBatch, timeout_s: float) -> AddReply:
        return await self._send(
            bookie, timeout_s, lambda within_s: self._transport.add(bookie, batch, within_s), AddReply
        )

    @override
    async def ask(self, bookie: BookieId, request: Request[ReplyT], timeout_s: float) -> ReplyT:
        return await self._send(
            bookie, timeout_s, lambda within_s: self._transport.ask(bookie, request, within_s), request.failed
        )

    @override
    async def close(self) -> None:
        await self._transport.close()

    async def _send(
        self,
        bookie: BookieId,
        timeout_s: float,
        send: Callable[[float], Awaitable[ReplyT]],
        failed: Failed[ReplyT],
    ) -> ReplyT:
        sent_s = self._clock.monotonic_s()
        admission = self._circuits.admit(bookie, sent_s)
        if admission is Admission.REFUSED:
            return failed(Status.UNREACHABLE, detail=f"bookie {bookie} has not answered for a while, and was not asked")
        if admission is Admission.PROBE:
            return await self._probe(bookie, send(min(timeout_s, self._circuits.probe_timeout_s(bookie))))
        try:
            reply = await send(timeout_s)
        except asyncio.CancelledError:
            if (now_s := self._clock.monotonic_s()) - sent_s >= SLOW_S:
                self._circuits.record_unanswered(bookie, now_s)
            raise
        now_s = self._clock.monotonic_s()
        if is_answer(reply):
            self._circuits.answered(bookie)
        elif reply.status in _NO_ANSWER_STATUSES and now_s - sent_s >= SILENCE_S:
            self._circuits.record_unanswered(bookie, now_s)
        return reply

    async def _probe(self, bookie: BookieId, sent: Awaitable[ReplyT]) -> ReplyT:
        reply: ReplyT | None = None
        try:
            reply = await sent
        finally:
            if reply is None:
                self._circuits.probe_cancelled(bookie)
        if is_answer(reply):
            self._circuits.answered(bookie)
        elif reply.status is Status.UNSUPPORTED:  # proves nothing; otherwise lists would use up every probe
            self._circuits.probe_cancelled(bookie)
        else:
            self._circuits.probe_failed(bookie, self._clock.monotonic_s())
        return reply


def is_answer(reply: Reply) -> bool:
    """Whether the reply, or a part of it, comes from the bookie itself."""
    return reply.status not in _LOCAL_STATUSES or (isinstance(reply, ReadReply) and bool(reply.results))
