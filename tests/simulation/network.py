"""The network of a history: every message has its own delay and may be lost, held or sent twice, by kind and by link.

``SimTransport`` is the transport port of one process. Adds over one link arrive in the order of the calls, as the port
promises; all other messages may overtake each other. A delivered request runs to its end at the bookie, even if no
process waits for its answer. An answer from an earlier life of a bookie, or to a dead process, is dropped.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, cast

from typing_extensions import override

from bookie.model.errors import BkhealError
from bookie.model.ids import BookieId
from bookie.wire.handler import BookieHandler
from bookie.wire.port import AddBatch, AddReply, Failed, ReadReply, ReplyT, Request, Status, Transport
from bookie.wire.requests import (
    Copy,
    Fence,
    Info,
    ListEntries,
    Read,
    ReadLac,
    ReadLast,
    WaitLac,
    WriteLac,
    incarnation_for,
)
from bookie.wire.resolver import Resolver
from tests.simulation.loop import Process, SimLoop
from tests.simulation.trace import Trace

PORT: Final = 3181
_CUT_SHARE: Final = 0.05
_ADD_LIKE: Final = ("add", "recovery add")
_KINDS: Final[Mapping[type[Request[Any]], str]] = {
    Read: "read",
    ReadLast: "read",
    Fence: "fence",
    ReadLac: "lac",
    WaitLac: "lac",
    WriteLac: "lac",
    ListEntries: "list",
    Copy: "copy",
    Info: "info",
}
"""The kinds of requests without a fence key. The faults of a link are set per kind."""


@dataclass(slots=True)
class Link:
    """The faults of messages between one process and one bookie. Shares are probabilities."""

    loss: dict[str, float] = field(default_factory=dict)
    """The shares by kind of request. The key "" stands for every kind."""
    answer_loss: dict[str, float] = field(default_factory=dict)
    extra_delay_s: float = 0.0
    late_share: float = 0.0
    late_s: float = 1.0
    """The largest extra delay of the late messages."""

    def draw(self, table: dict[str, float], kind: str, rng: random.Random) -> bool:
        if not table:
            return False
        share = table.get(kind, table.get("", 0.0))
        return share > 0 and rng.random() < share


class Listener(Protocol):
    """What the network knows of a bookie."""

    process: Process

    @property
    def handler(self) -> BookieHandler:
        """The handler of its requests."""
        ...

    @property
    def is_listening(self) -> bool:
        """Whether a process listens at its address."""
        ...


class SimNetwork:
    """Every link of a history.

    Attributes:
        delay_max_s: usual largest delay of a message.
        on_deliver: called for every delivered request: sender, bookie, kind.
    """

    def __init__(self, loop: SimLoop, rng: random.Random, trace: Trace) -> None:
        self.loop = loop
        self.rng = rng
        self.trace = trace
        self.delay_max_s = 0.01
        self.lost_kinds: set[tuple[str, str]] = set()
        self.breaking: random.Random | None = None
        """The source of random decisions on broken connections; None: no connection ever breaks."""
        self.cutting: random.Random | None = None
        """The source of random decisions on answers that are cut short; None: every answer is complete."""
        self._in_flight: dict[tuple[str, str], dict[_Message, None]] = {}
        """The calls without an answer, by sender and host, if connections can break."""
        self.on_deliver: Callable[[str, BookieId, str], None] = lambda sender, bookie, kind: None
        self._listeners: dict[str, Listener] = {}
        self._links: dict[tuple[str, str], Link] = {}
        self._healthy = Link()

    def listen(self, host: str, listener: Listener) -> None:
        """Let ``listener`` answer at ``host``."""
        self._listeners[host] = listener

    def at(self, host: str) -> Listener | None:
        """Return the listener at ``host``, if it listens."""
        listener = self._listeners.get(host)
        return listener if listener is not None and listener.is_listening else None

    def link(self, sender: str, host: str) -> Link:
        """Return the link, so that its faults can be changed."""
        return self._links.setdefault((sender, host), Link())

    def heal(self) -> None:
        """Make every link healthy."""
        self._links.clear()
        self.breaking = self.cutting = None
        self.lost_kinds.clear()
        self.delay_max_s = 0.01

    def path(self, sender: str, host: str) -> Link:
        """Return the link, for sending a message."""
        return self._links.get((sender, host), self._healthy)

    def note_call(self, sender: str, host: str, message: _Message) -> None:
        """Note a call, which ends if its connection breaks."""
        if self.breaking is not None:
            calls = self._in_flight.setdefault((sender, host), {})
            calls[message] = None
            message.answer.add_done_callback(lambda _: calls.pop(message, None))

    def busy_links(self) -> list[tuple[str, str]]:
        """Return the sender and the host of each connection with calls in flight, if connections can break."""
        return [key for key, calls in self._in_flight.items() if calls]

    def break_connections(self, host: str, sender: str = "") -> None:
        """Break the connection of ``sender`` ("": of every process) to a host.

        Its calls end as unreachable. Requests that have arrived take effect, and half of the others arrive later.
        """
        if (rng := self.breaking) is None:
            return
        for key, calls in self._in_flight.items():
            if key[1] == host and sender in ("", key[0]):
                for message in list(calls):
                    message.is_dropped = rng.random() < 0.5
                    self.loop.call_later(0.01 * rng.random(), message.fail, Status.UNREACHABLE, "the connection broke")

    def arrived(self, reply: Any) -> Any:
        """Return a reply as it arrives. A read may be cut short: then its status is that of the broken connection."""
        rng = self.cutting
        if rng is None or not isinstance(reply, ReadReply) or len(reply.results) < 2 or rng.random() >= _CUT_SHARE:
            return reply
        results = reply.results[: rng.randrange(len(reply.results))]
        return ReadReply(Status.UNREACHABLE, results, "the answer was cut short")

    def delay_s(self, link: Link) -> float:
        """Return the delay of the next message on a link."""
        delay_s = self.rng.random() * self.delay_max_s + link.extra_delay_s
        if link.late_share and self.rng.random() < link.late_share:
            delay_s += self.rng.random() * link.late_s
        return delay_s


@dataclass(slots=True, eq=False)
class _Message:
    kind: str
    ask: Callable[[BookieHandler, str], Coroutine[Any, Any, Any]]
    answer: asyncio.Future[Any]
    generation: int
    is_dropped: bool = False
    """Whether its connection broke before it arrived."""

    def fail(self, status: Status, detail: str) -> None:
        if not self.answer.done():
            self.answer.set_result((status, detail))


@dataclass(slots=True)
class _Line:
    """The messages of one process for one bookie."""

    waiting: deque[_Message] = field(default_factory=deque)
    is_resolving: bool = False
    last_add_at_s: float = 0.0


class SimTransport(Transport):
    """The transport port of one process."""

    def __init__(self, network: SimNetwork, process: Process, resolver: Resolver) -> None:
        self._network = network
        self._loop = network.loop
        self._process = process
        self._resolver = resolver
        self._lines: dict[BookieId, _Line] = {}
        self.is_cut_off = False

    @override
    async def add(self, bookie: BookieId, batch: AddBatch, timeout_s: float) -> AddReply:
        pin = batch.incarnation
        kind = "recovery add" if batch.is_recovery else "add"
        return await self._call(bookie, kind, lambda to, known: to.add(pin or known, batch), AddReply, timeout_s)

    @override
    async def ask(self, bookie: BookieId, request: Request[ReplyT], timeout_s: float) -> ReplyT:
        is_recovery = isinstance(request, Read) and request.fence_key is not None
        kind = "recovery read" if is_recovery else _KINDS[type(request)]
        return await self._call(
            bookie,
            kind,
            lambda to, known: to.answer(incarnation_for(request, known), request),
            request.failed,
            timeout_s,
        )

    @override
    async def close(self) -> None:
        self.is_cut_off = True

    def cut_off(self) -> None:
        """Note that the process is dead: it no longer sends or receives."""
        self.is_cut_off = True

    async def _call(
        self,
        bookie: BookieId,
        kind: str,
        ask: Callable[[BookieHandler, str], Coroutine[Any, Any, ReplyT]],
        failed: Failed[ReplyT],
        timeout_s: float,
    ) -> ReplyT:
        answer: asyncio.Future[Any] = self._loop.create_future()
        line = self._lines.get(bookie)
        if line is None:
            line = self._lines[bookie] = _Line()
        line.waiting.append(_Message(kind, ask, answer, self._process.generation))
        if not line.is_resolving:
            line.is_resolving = True
            self._process.run("send", self._send_waiting(bookie, line))
        timer = self._loop.call_later(timeout_s, _time_out, answer, timeout_s)
        try:
            reply = await answer
        finally:
            timer.cancel()
        return failed(reply[0], detail=reply[1]) if isinstance(reply, tuple) else cast(ReplyT, reply)

    async def _send_waiting(self, bookie: BookieId, line: _Line) -> None:
        """Look up the address and send the waiting messages in order, including those of later callers."""
        try:
            while line.waiting:
                try:
                    address = await self._resolver.resolve(bookie)
                except BkhealError as error:
                    self._fail(line.waiting.popleft(), Status.UNRESOLVED, str(error))
                    continue
                message = line.waiting.popleft()
                if address is None:
                    self._fail(message, Status.UNRESOLVED, f"{bookie} has no address")
                else:
                    self._send(bookie, line, message, address.host, address.incarnation)
        finally:
            line.is_resolving = False
            while line.waiting and self.is_cut_off:
                self._fail(line.waiting.popleft(), Status.UNREACHABLE, "cut off")

    def _send(self, bookie: BookieId, line: _Line, message: _Message, host: str, incarnation: str) -> None:
        network, loop = self._network, self._loop
        if self.is_cut_off:
            return self._fail(message, Status.UNREACHABLE, "cut off")
        network.note_call(self._process.name, host, message)
        link = network.path(self._process.name, host)
        at_s = max(loop.time(), self._process.held_until_s) + network.delay_s(link)
        if message.kind in _ADD_LIKE:
            at_s = line.last_add_at_s = max(at_s, line.last_add_at_s)
        is_lost = network.lost_kinds and (host, message.kind) in network.lost_kinds
        if is_lost or link.draw(link.loss, message.kind, network.rng):
            return network.trace.event(self._process.name, f"{message.kind} to {host} lost")
        loop.call_at(at_s, self._deliver, bookie, message, host, incarnation)
        return None

    def _deliver(self, bookie: BookieId, message: _Message, host: str, incarnation: str) -> None:
        network = self._network
        if message.is_dropped:
            return None
        listener = network.at(host)
        network.trace.event(self._process.name, f"{message.kind} reaches {host}")
        if listener is None:
            return self._fail(message, Status.UNREACHABLE, f"no process listens at {host}")
        held_s = listener.process.held_until_s - self._loop.time()
        if held_s > 0:
            self._loop.call_later(held_s, self._deliver, bookie, message, host, incarnation)
            return None
        network.on_deliver(self._process.name, bookie, message.kind)
        if not listener.is_listening:  # the callback may have killed it
            return self._fail(message, Status.UNREACHABLE, f"no process listens at {host}")
        generation = listener.process.generation
        work = listener.process.run(message.kind, message.ask(listener.handler, incarnation))
        work.add_done_callback(lambda task: self._answered(message, host, listener, generation, task))
        return None

    def _answered(
        self, message: _Message, host: str, listener: Listener, generation: int, task: asyncio.Task[Any]
    ) -> None:
        if task.cancelled() or listener.process.generation != generation:
            return
        if task.exception() is not None:
            return
        network = self._network
        link = network.path(self._process.name, host)
        if link.draw(link.answer_loss, message.kind, network.rng):
            network.trace.event(host, f"answer to {self._process.name}'s {message.kind} lost")
            return
        at_s = self._loop.time() + network.delay_s(link)
        reply = network.arrived(task.result())
        self._loop.call_at(max(at_s, self._process.held_until_s), self._deliver_reply, message, reply)

    def _deliver_reply(self, message: _Message, reply: Any) -> None:
        held_s = self._process.held_until_s - self._loop.time()
        if held_s > 0:
            self._loop.call_later(held_s, self._deliver_reply, message, reply)
        elif not message.answer.done() and message.generation == self._process.generation:
            self._network.trace.event(self._process.name, f"hears {message.kind} {_shown(reply)}")
            message.answer.set_result(reply)

    def _fail(self, message: _Message, status: Status, detail: str) -> None:
        message.fail(status, detail)


def _time_out(answer: asyncio.Future[Any], timeout_s: float) -> None:
    if not answer.done():
        answer.set_result((Status.TIMEOUT, f"no answer within {timeout_s:g} s"))


def _shown(reply: Any) -> str:
    text: str = reply.status.name
    if isinstance(reply, ReadReply) and reply.status is Status.OK:
        text += " " + ",".join(f"{result.entry_id}:{result.status.name}" for result in reply.results)
    return text
