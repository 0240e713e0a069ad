"""Faults of the in-process transport, which tests and simulations use."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest
from typing_extensions import override

from bookie.model.errors import TransientError
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.runtime.fault_points import inject_faults
from bookie.wire.handler import BookieHandler
from bookie.wire.memory import MemoryNetwork, MemoryTransport
from bookie.wire.port import AddBatch, AddReply, ReplyT, Request, Status
from bookie.wire.requests import WaitLac
from bookie.wire.resolver import BookieAddress
from tests.deadlines import STATE_S

BOOKIE = BookieId("b")
SOON_S = 0.1
"""The deadline of calls that must time out."""


@dataclass
class RecordingBookie(BookieHandler):
    """A bookie that accepts everything and records the order of arrival."""

    payloads: list[bytes] = field(default_factory=list)
    incarnations: set[str] = field(default_factory=set)
    polls: int = 0
    """The number of long polls in progress."""
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    has_received: asyncio.Event = field(default_factory=asyncio.Event)

    @override
    async def add(self, incarnation: str, batch: AddBatch) -> AddReply:
        self.incarnations.add(incarnation)
        self.payloads.extend(batch.entries)
        self.has_received.set()
        await self.may_answer.wait()
        return AddReply(Status.OK)

    @override
    async def answer(self, incarnation: str, request: Request[ReplyT]) -> ReplyT:
        if isinstance(request, WaitLac):
            self.polls += 1
            self.has_received.set()
            try:
                await self.may_answer.wait()
            finally:
                self.polls -= 1
        return request.failed(Status.OK, detail="")


@dataclass
class Directory:
    address: BookieAddress | None = field(default_factory=lambda: BookieAddress("host", 1, incarnation="uuid"))
    error: TransientError | None = None

    async def resolve(self, bookie: BookieId) -> BookieAddress | None:
        if self.error is not None:
            raise self.error
        return self.address


@pytest.fixture
def bookie() -> RecordingBookie:
    bookie = RecordingBookie()
    bookie.may_answer.set()
    return bookie


@pytest.fixture
def directory() -> Directory:
    return Directory()


@pytest.fixture
def transport(bookie: RecordingBookie, directory: Directory) -> MemoryTransport:
    network = MemoryNetwork()
    network.listen("host", 1, bookie)
    return MemoryTransport(directory, network)


async def add(transport: MemoryTransport, payload: bytes = b"x", timeout_s: float = STATE_S) -> Status:
    return (await transport.add(BOOKIE, AddBatch(LedgerId(1), b"", [payload]), timeout_s)).status


async def test_the_incarnation_is_sent_with_the_request(transport: MemoryTransport, bookie: RecordingBookie) -> None:
    assert await add(transport) is Status.OK
    assert bookie.incarnations == {"uuid"}


async def test_unreachable_bookies_receive_nothing(transport: MemoryTransport, bookie: RecordingBookie) -> None:
    transport.faults(BOOKIE).is_unreachable = True
    assert await add(transport) is Status.UNREACHABLE
    assert bookie.payloads == []


async def test_lost_requests_time_out_without_effect(transport: MemoryTransport, bookie: RecordingBookie) -> None:
    transport.faults(BOOKIE).is_request_lost = True
    assert await add(transport, timeout_s=SOON_S) is Status.TIMEOUT
    assert bookie.payloads == []


async def test_lost_replies_time_out_with_effect(transport: MemoryTransport, bookie: RecordingBookie) -> None:
    transport.faults(BOOKIE).is_reply_lost = True
    assert await add(transport, timeout_s=SOON_S) is Status.TIMEOUT
    assert bookie.payloads == [b"x"]


async def test_a_cut_fails_requests_in_flight_and_no_later_ones(
    transport: MemoryTransport, bookie: RecordingBookie
) -> None:
    bookie.may_answer.clear()
    call = asyncio.create_task(add(transport))
    await bookie.has_received.wait()
    transport.cut(BOOKIE)
    assert await call is Status.UNREACHABLE
    bookie.may_answer.set()
    assert await add(transport) is Status.OK


async def test_delays_overlap_and_keep_the_order(transport: MemoryTransport, bookie: RecordingBookie) -> None:
    payloads = [bytes([n]) for n in range(10)]
    calls = []
    for payload, delay_s in zip(payloads, [0.02, 0.0] * 5, strict=True):
        transport.faults(BOOKIE).delay_s = delay_s
        calls.append(asyncio.create_task(add(transport, payload)))
        await asyncio.sleep(0)
    assert [await call for call in calls] == [Status.OK] * 10
    assert bookie.payloads == payloads


async def test_an_add_that_timed_out_in_flight_does_not_delay_the_next(
    transport: MemoryTransport, bookie: RecordingBookie
) -> None:
    transport.faults(BOOKIE).delay_s = 100.0
    late = asyncio.create_task(add(transport, b"late", timeout_s=SOON_S))
    await asyncio.sleep(0)
    transport.faults(BOOKIE).delay_s = 0.0
    assert await add(transport, b"next") is Status.OK
    assert await late is Status.TIMEOUT
    assert bookie.payloads == [b"next"]


async def test_a_failing_resolver_gives_the_status_unresolved(transport: MemoryTransport, directory: Directory) -> None:
    directory.error = TransientError("the store is silent")
    assert await add(transport) is Status.UNRESOLVED


async def test_a_pinned_incarnation_takes_precedence_over_the_registered_one(
    transport: MemoryTransport, bookie: RecordingBookie
) -> None:
    await transport.add(BOOKIE, AddBatch(LedgerId(1), b"", [b"x"], incarnation="pinned"), STATE_S)
    assert bookie.incarnations == {"pinned"}


async def test_a_long_poll_ends_with_its_caller(transport: MemoryTransport, bookie: RecordingBookie) -> None:
    bookie.may_answer.clear()
    poll = asyncio.create_task(transport.ask(BOOKIE, WaitLac(LedgerId(1), EntryId(0), STATE_S), STATE_S))
    await bookie.has_received.wait()
    assert bookie.polls == 1
    poll.cancel()
    with pytest.raises(asyncio.CancelledError):
        await poll
    await asyncio.sleep(0)
    assert bookie.polls == 0
    bookie.may_answer.set()
    reply = await transport.ask(BOOKIE, WaitLac(LedgerId(1), EntryId(0), STATE_S), STATE_S)
    assert reply.status is Status.OK


async def test_a_request_that_times_out_while_queued_does_not_change_the_order(
    transport: MemoryTransport, bookie: RecordingBookie
) -> None:
    transport.faults(BOOKIE).delay_s = 2 * SOON_S
    first = asyncio.create_task(add(transport, b"first"))
    await asyncio.sleep(0)
    transport.faults(BOOKIE).delay_s = 0.0
    given_up = asyncio.create_task(add(transport, b"given up", timeout_s=0.0))
    await asyncio.sleep(0)
    assert await add(transport, b"last") is Status.OK
    assert (await first, await given_up) == (Status.OK, Status.TIMEOUT)
    assert bookie.payloads == [b"first", b"last"]


async def test_cut_calls_end_in_the_order_of_their_requests(
    transport: MemoryTransport, bookie: RecordingBookie
) -> None:
    bookie.may_answer.clear()
    ended: list[bytes] = []

    async def one(payload: bytes) -> None:
        assert await add(transport, payload) is Status.UNREACHABLE
        ended.append(payload)

    payloads = [bytes([n]) for n in range(50)]
    calls = [asyncio.create_task(one(payload)) for payload in payloads]
    while len(bookie.payloads) < len(payloads):  # noqa: ASYNC110 (in memory: each turn delivers)
        await asyncio.sleep(0)
    transport.cut(BOOKIE)
    await asyncio.gather(*calls)
    assert ended == payloads


async def test_a_simulation_may_lose_answers_and_delay_requests(
    transport: MemoryTransport, bookie: RecordingBookie
) -> None:
    with inject_faults(lambda name: name == "transport.reply_lost"):
        assert await add(transport, b"first") is Status.UNREACHABLE
    with inject_faults(lambda name: name == "transport.slow_request"):
        assert await add(transport, b"second") is Status.OK
    assert bookie.payloads == [b"first", b"second"]
