"""When an unresponsive bookie is asked again, and what its callers get until then (R42)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import cast

import pytest
from typing_extensions import override

from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.runtime.tasks import cancel
from bookie.wire import circuits as module
from bookie.wire.circuits import Admission, Circuits, CircuitTransport
from bookie.wire.port import AddBatch, AddReply, EntryResult, ReadReply, ReplyT, Request, Status, Transport
from bookie.wire.requests import Info, ListEntries, Read
from tests.worlds.clocks import VirtualClock
from tests.worlds.requests import one_of_each
from tests.worlds.virtual_time import in_virtual_time

GRAY, OTHER = BookieId("gray"), BookieId("other")
BATCH = AddBatch(LedgerId(7), b"key", [b"entry"])
READ = Read(LedgerId(7), [EntryId(0), EntryId(1)])
DEADLINE_S = 15.0
DENIAL = ReadReply(Status.OK, [EntryResult(EntryId(0), Status.NO_ENTRY)])


class Scripted(Transport):
    """A transport that answers with ``status`` after ``delay_s``, or with TIMEOUT if the delay is too long."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.status = Status.OK
        self.delay_s = 0.0
        self.reply: ReadReply | None = None
        self.deadlines_s: list[float] = []

    @override
    async def add(self, bookie: BookieId, batch: AddBatch, timeout_s: float) -> AddReply:
        return await self._answer(timeout_s, AddReply)

    @override
    async def ask(self, bookie: BookieId, request: Request[ReplyT], timeout_s: float) -> ReplyT:
        reply = await self._answer(timeout_s, request.failed)
        return reply if self.reply is None else cast(ReplyT, self.reply)

    @override
    async def close(self) -> None:
        self.deadlines_s.clear()

    async def _answer(self, timeout_s: float, make: Callable[..., ReplyT]) -> ReplyT:
        self.deadlines_s.append(timeout_s)
        await self._clock.sleep(min(self.delay_s, timeout_s))
        return make(Status.TIMEOUT if self.delay_s > timeout_s else self.status, detail="as the test wants")


class SilentTransport:
    """A transport with circuits, for a bookie that can stop answering."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.inner = Scripted(self.clock)
        self.circuits = Circuits()
        self.transport = CircuitTransport(self.inner, self.circuits, self.clock)

    @property
    def sent(self) -> int:
        return len(self.inner.deadlines_s)

    async def read(self, bookie: BookieId = GRAY) -> Status:
        return (await self.transport.ask(bookie, READ, DEADLINE_S)).status

    async def open(self) -> None:
        """Let requests time out until the circuit opens."""
        self.inner.delay_s = 1e9
        for _ in range(module.SILENCES_MAX):
            assert await self.read() is Status.TIMEOUT
        assert self.circuits.open_count == 1


@in_virtual_time
async def test_an_open_circuit_fails_every_kind_of_request_at_once_and_never_as_absent() -> None:
    world = SilentTransport()
    await world.open()
    asked = world.sent
    started_s = world.clock.monotonic_s()
    replies = [
        await world.transport.ask(GRAY, request, DEADLINE_S) for request in one_of_each(LedgerId(7), b"key", b"lac")
    ]
    replies.append(await world.transport.add(GRAY, BATCH, DEADLINE_S))
    assert {reply.status for reply in replies} == {Status.UNREACHABLE}
    assert not any(reply.status.is_absent for reply in replies)
    assert world.clock.monotonic_s() == started_s
    assert world.sent == asked
    assert await world.read(OTHER) is Status.TIMEOUT  # the other bookie has a circuit of its own
    assert world.circuits.open_count == 1


@in_virtual_time
async def test_a_bookie_without_an_address_counts_as_not_answering() -> None:
    world = SilentTransport()
    await world.open()
    world.inner.delay_s, world.inner.status = 0.0, Status.UNRESOLVED
    await world.clock.sleep(module.PROBE_PAUSE_S)
    assert await world.read() is Status.UNRESOLVED
    assert await world.read() is Status.UNREACHABLE
    assert world.circuits.open_count == 1


@in_virtual_time
async def test_an_answer_between_timeouts_keeps_the_circuit_closed() -> None:
    world = SilentTransport()
    for _ in range(5):
        for _ in range(module.SILENCES_MAX - 1):
            world.inner.delay_s = 1e9
            assert await world.read() is Status.TIMEOUT
        world.inner.delay_s = 0.0
        assert await world.read() is Status.OK
    assert world.circuits.open_count == 0


@pytest.mark.parametrize("status", [Status.UNREACHABLE, Status.UNRESOLVED, Status.TOO_MANY_REQUESTS, Status.CORRUPT])
def test_a_bookie_that_refuses_at_once_does_not_open_the_circuit(status: Status) -> None:
    @in_virtual_time
    async def run() -> None:
        world = SilentTransport()
        world.inner.status = status
        for _ in range(20):
            assert await world.read() is status
        assert world.sent == 20

    run()


@in_virtual_time
async def test_connections_that_fail_after_a_wait_count_as_timeouts() -> None:
    world = SilentTransport()
    world.inner.status, world.inner.delay_s = Status.UNREACHABLE, 10.0
    for _ in range(module.SILENCES_MAX):
        await world.read()
    assert world.circuits.open_count == 1


@in_virtual_time
async def test_a_partial_answer_does_not_open_the_circuit() -> None:
    world = SilentTransport()
    world.inner.delay_s = 5.0
    world.inner.reply = ReadReply(Status.TIMEOUT, [EntryResult(EntryId(0), Status.OK, b"entry")])
    for _ in range(5):
        await world.read()
    assert world.circuits.open_count == 0


@in_virtual_time
async def test_probes_are_sent_at_growing_intervals() -> None:
    world = SilentTransport()
    await world.open()
    probes_s: list[float] = []
    sent = world.sent
    started_s = world.clock.monotonic_s()
    while len(probes_s) < 8:
        before = world.sent
        now_s = world.clock.monotonic_s()
        await world.read()
        if world.sent > before:
            probes_s.append(now_s - started_s)
        await world.clock.sleep(0.25)
        started_s = started_s if world.sent == before else world.clock.monotonic_s() - 0.25
    assert probes_s == pytest.approx([1, 2, 4, 8, 16, 30, 30, 30], abs=0.5)
    assert world.inner.deadlines_s[sent:] == [5, 5, 5, 8, 15, 15, 15, 15]


@in_virtual_time
async def test_only_one_probe_runs_at_a_time_and_its_answer_closes_the_circuit() -> None:
    world = SilentTransport()
    await world.open()
    await world.clock.sleep(module.PROBE_PAUSE_S)
    asked = world.sent
    world.inner.delay_s = 3.0
    assert not world.circuits.is_avoided(GRAY, world.clock.monotonic_s())
    statuses = await asyncio.gather(*(world.read() for _ in range(4)))
    assert statuses == [Status.OK, *[Status.UNREACHABLE] * 3]
    assert world.sent == asked + 1
    assert world.circuits.open_count == 0
    assert await world.read() is Status.OK


@in_virtual_time
async def test_a_denial_is_an_answer_and_is_passed_on_unchanged() -> None:
    world = SilentTransport()
    await world.open()
    await world.clock.sleep(module.PROBE_PAUSE_S)
    world.inner.delay_s, world.inner.reply = 0.0, DENIAL
    assert await world.transport.ask(GRAY, READ, DEADLINE_S) == DENIAL
    assert world.circuits.open_count == 0


@in_virtual_time
async def test_a_cancelled_probe_allows_the_next_one() -> None:
    world = SilentTransport()
    await world.open()
    await world.clock.sleep(module.PROBE_PAUSE_S)
    probe = asyncio.ensure_future(world.read())
    await world.clock.sleep(0.1)
    assert world.circuits.is_avoided(GRAY, world.clock.monotonic_s())
    probe.cancel()
    await asyncio.wait([probe])
    asked = world.sent
    world.inner.delay_s = 0.0
    assert await world.read() is Status.OK
    assert world.sent == asked + 1


@in_virtual_time
async def test_an_unsupported_request_allows_the_next_probe() -> None:
    """A repair asks for a list first, and then for each entry."""
    gray = SilentTransport()
    await gray.open()
    gray.inner.delay_s = 0.0
    await gray.clock.sleep(module.PROBE_PAUSE_S)
    gray.inner.status = Status.UNSUPPORTED
    assert (await gray.transport.ask(GRAY, ListEntries(LedgerId(7)), DEADLINE_S)).status is Status.UNSUPPORTED
    gray.inner.status = Status.OK
    assert await gray.read() is Status.OK
    assert gray.circuits.open_count == 0


@in_virtual_time
async def test_circuits_of_unregistered_bookies_are_removed() -> None:
    world = SilentTransport()
    await world.open()
    now_s = world.clock.monotonic_s()
    assert world.circuits.avoided([GRAY, OTHER], now_s) == {GRAY}
    assert world.circuits.avoided([OTHER], now_s) == frozenset()
    world.circuits.keep_only([GRAY])
    assert world.circuits.open_count == 1
    world.circuits.keep_only([OTHER])
    assert world.circuits.open_count == 0
    assert world.circuits.admit(GRAY, now_s) is Admission.SENT


def test_each_change_of_a_circuit_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    @in_virtual_time
    async def run() -> None:
        world = SilentTransport()
        await world.open()
        for _ in range(5):
            await world.read()
        await world.clock.sleep(module.PROBE_PAUSE_S)
        world.inner.delay_s = 0.0
        for _ in range(5):
            await world.transport.ask(GRAY, Info(), DEADLINE_S)

    with caplog.at_level(logging.INFO, logger=module.__name__):
        run()
    assert [record.getMessage() for record in caplog.records] == [
        "bookie does not answer, its circuit is open",
        "bookie answers again",
    ]


@in_virtual_time
async def test_requests_cancelled_after_seconds_open_the_circuit() -> None:
    world = SilentTransport()
    world.inner.delay_s = 1e9
    for _ in range(module.SILENCES_MAX):
        asked = asyncio.create_task(world.read())
        await asyncio.sleep(module.SLOW_S + 0.1)
        assert world.circuits.open_count == 0
        await cancel(asked)
    assert world.circuits.open_count == 1


@in_virtual_time
async def test_requests_cancelled_early_do_not_open_the_circuit() -> None:
    world = SilentTransport()
    world.inner.delay_s = 1e9
    for _ in range(5):
        asked = asyncio.create_task(world.read())
        await asyncio.sleep(module.SLOW_S / 2)
        await cancel(asked)
    assert world.circuits.open_count == 0
