"""The gRPC transport with bookies that are slow, broken, restarted or answer wrongly (S6, S18)."""

# ruff: noqa: N802  # method names of the service are gRPC's

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc.aio
import pytest

from bookie.model.errors import TransientError
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.wire import bookie_pb2 as pb
from bookie.wire import bookie_pb2_grpc as rpc
from bookie.wire.grpc.channel import MESSAGE_BYTES_MAX
from bookie.wire.grpc.transport import GrpcTransport, InsecureTransportError
from bookie.wire.port import AddBatch, AddReply, EntryResult, ReadReply, Status
from bookie.wire.requests import Fence, Info, ListEntries, Read, ReadLac, ReadLast, WaitLac
from bookie.wire.resolver import BookieAddress
from bookie.wire.security import TlsSettings
from tests.deadlines import STATE_S
from tests.worlds.requests import one_of_each

BOOKIE = BookieId("b:1")
LEDGER = LedgerId(7)
DEADLINE_S = STATE_S
"""Never reached if the test passes."""
SOON_S = 0.2
"""For calls expected to time out."""


class ScriptedBookie(rpc.BookieServicer):
    """Passes every add to the test, which decides about acks; others are set beforehand. By default it sends none."""

    def __init__(self) -> None:
        self.adds: asyncio.Queue[ReceivedAdd] = asyncio.Queue()
        self.pieces: Sequence[pb.EntryBatch | pb.EntryList] = ()
        self.last: pb.EntryBatch | None = None
        self.lac: pb.LacResponse | None = None
        self.port = 0

    async def Add(self, request_iterator: object, context: AddContext) -> None:
        while isinstance(message := await context.read(), pb.AddRequest):
            for batch in message.batches:
                self.adds.put_nowait(ReceivedAdd(batch, message.incarnation, context))
                if batch.ledger_id == BREAKS_STREAM:
                    return

    async def Read(self, request: object, context: object) -> AsyncIterator[object]:
        for piece in self.pieces:
            yield piece
        if not self.pieces:
            await asyncio.Event().wait()

    async def ListEntries(self, request: object, context: object) -> AsyncIterator[object]:
        async for piece in self.Read(request, context):
            yield piece

    async def ReadLast(self, request: object, context: object) -> pb.EntryBatch:
        if self.last is None:
            await asyncio.Event().wait()
        assert self.last is not None
        return self.last

    async def Fence(self, request: object, context: object) -> None:
        await asyncio.Event().wait()

    async def ReadLac(self, request: object, context: object) -> pb.LacResponse:
        if self.lac is None:
            await asyncio.Event().wait()
        assert self.lac is not None
        return self.lac

    async def WaitLac(self, request: object, context: object) -> pb.LacResponse:
        return await self.ReadLac(request, context)

    async def WriteLac(self, request: object, context: object) -> None:
        await asyncio.Event().wait()

    async def Copy(self, request: object, context: object) -> None:
        await asyncio.Event().wait()

    async def Info(self, request: object, context: object) -> None:
        await asyncio.Event().wait()


AddContext = grpc.aio.ServicerContext[pb.AddRequest, pb.AddResponse]
BREAKS_STREAM = 666


@dataclass
class ReceivedAdd:
    message: pb.AddBatch
    incarnation: str
    context: AddContext

    async def ack(self, status: int = 0, *, request_id: int | None = None, ledger_id: int | None = None) -> None:
        ack = pb.AddAck(
            request_id=self.message.request_id if request_id is None else request_id,
            ledger_id=self.message.ledger_id if ledger_id is None else ledger_id,
        )
        ack.status = status  # type: ignore[assignment]  # numbers beyond the enum on purpose
        await self.context.write(pb.AddResponse(acks=[ack]))


class Directory:
    """A resolver with answers set by the test."""

    def __init__(self) -> None:
        self.address: BookieAddress | None = None
        self.error: TransientError | None = None

    async def resolve(self, bookie: BookieId) -> BookieAddress | None:
        if self.error is not None:
            raise self.error
        return self.address


Start = Callable[[], Awaitable[ScriptedBookie]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    servers = []

    async def run() -> ScriptedBookie:
        bookie = ScriptedBookie()
        server = grpc.aio.server()
        rpc.add_BookieServicer_to_server(bookie, server)  # type: ignore[no-untyped-call]
        bookie.port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        servers.append(server)
        return bookie

    yield run
    for server in servers:
        await server.stop(None)


@pytest.fixture
async def bookie(start: Start) -> ScriptedBookie:
    return await start()


@pytest.fixture
def directory(bookie: ScriptedBookie) -> Directory:
    directory = Directory()
    directory.address = BookieAddress("127.0.0.1", bookie.port)
    return directory


@pytest.fixture
async def transport(directory: Directory) -> AsyncIterator[GrpcTransport]:
    transport = GrpcTransport(directory, is_plaintext=True, in_flight_bytes_max=1000)
    yield transport
    await transport.close()


def batch(payload: bytes = b"x", ledger_id: int = LEDGER) -> AddBatch:
    return AddBatch(LedgerId(ledger_id), b"key", [payload])


def adding(transport: GrpcTransport, what: AddBatch, timeout_s: float = DEADLINE_S) -> asyncio.Task[AddReply]:
    return asyncio.create_task(transport.add(BOOKIE, what, timeout_s))


async def round_trip(transport: GrpcTransport, bookie: ScriptedBookie) -> None:
    bookie.lac = pb.LacResponse(status=pb.STATUS_NO_LEDGER)
    assert (await transport.ask(BOOKIE, ReadLac(LEDGER), DEADLINE_S)).status is Status.NO_LEDGER


async def every_request(transport: GrpcTransport, timeout_s: float) -> list[tuple[Status, str]]:
    replies = await asyncio.gather(
        transport.add(BOOKIE, batch(), timeout_s),
        *(transport.ask(BOOKIE, each, timeout_s) for each in one_of_each(LEDGER, b"key", b"lac", timeout_s)),
    )
    return [(reply.status, reply.detail) for reply in replies]


async def test_acks_in_any_order_reach_the_right_callers(transport: GrpcTransport, bookie: ScriptedBookie) -> None:
    calls = [adding(transport, batch(bytes([n]))) for n in range(3)]
    received = [await bookie.adds.get() for _ in calls]
    assert [add.message.entries[0] for add in received] == [b"\0", b"\1", b"\2"]
    for add, status in zip(reversed(received), (pb.STATUS_FENCED, pb.STATUS_READ_ONLY, pb.STATUS_OK), strict=True):
        await add.ack(status)
    assert [(await call).status for call in calls] == [Status.OK, Status.READ_ONLY, Status.FENCED]


async def test_acks_that_match_no_request_are_dropped(transport: GrpcTransport, bookie: ScriptedBookie) -> None:
    call = adding(transport, batch())
    received = await bookie.adds.get()
    await received.ack(pb.STATUS_FENCED, request_id=received.message.request_id + 1)
    await received.ack(pb.STATUS_FENCED, ledger_id=LEDGER + 1)
    await received.ack(pb.STATUS_OK)
    await received.ack(pb.STATUS_FENCED)
    assert (await call).status is Status.OK


async def test_a_late_ack_is_not_taken_for_the_next_adds(transport: GrpcTransport, bookie: ScriptedBookie) -> None:
    await round_trip(transport, bookie)  # connects first, because otherwise a call may time out before it is sent
    assert (await transport.add(BOOKIE, batch(), SOON_S)).status is Status.TIMEOUT
    late = await bookie.adds.get()
    call = adding(transport, batch())
    received = await bookie.adds.get()
    await late.ack(pb.STATUS_OK)
    await received.ack(pb.STATUS_FENCED)
    assert (await call).status is Status.FENCED


async def test_an_ack_with_an_unknown_status_is_a_failure(transport: GrpcTransport, bookie: ScriptedBookie) -> None:
    call = adding(transport, batch())
    await (await bookie.adds.get()).ack(77)
    assert (await call).status is Status.IO_ERROR


async def test_adds_on_a_broken_stream_are_unreachable_and_the_next_add_opens_another(
    transport: GrpcTransport, bookie: ScriptedBookie
) -> None:
    calls = [adding(transport, batch()), adding(transport, batch(ledger_id=BREAKS_STREAM))]
    assert [(await call).status for call in calls] == [Status.UNREACHABLE] * 2
    assert [(await bookie.adds.get()).message.ledger_id for _ in calls] == [LEDGER, BREAKS_STREAM]
    call = adding(transport, batch())
    await (await bookie.adds.get()).ack()
    assert (await call).status is Status.OK
    assert bookie.adds.empty()  # requests in flight were not sent again


async def test_adds_wait_for_room_in_order(transport: GrpcTransport, bookie: ScriptedBookie) -> None:
    large, blocked, small = (adding(transport, batch(bytes(size))) for size in (600, 600, 1))
    first = await bookie.adds.get()
    await round_trip(transport, bookie)  # everything sent before has arrived
    assert bookie.adds.empty()
    await first.ack()
    rest = [await bookie.adds.get() for _ in range(2)]
    assert [len(add.message.entries[0]) for add in rest] == [600, 1]
    for add in rest:
        await add.ack()
    assert {(await call).status for call in (large, blocked, small)} == {Status.OK}


async def test_an_add_that_waits_for_room_times_out(transport: GrpcTransport, bookie: ScriptedBookie) -> None:
    call = adding(transport, batch(bytes(600)))
    received = await bookie.adds.get()
    assert (await transport.add(BOOKIE, batch(bytes(600)), SOON_S)).status is Status.TIMEOUT
    await received.ack()
    assert (await call).status is Status.OK
    assert bookie.adds.empty()


async def test_cancelled_adds_release_their_room(transport: GrpcTransport, bookie: ScriptedBookie) -> None:
    for _ in range(3):
        call = adding(transport, batch(bytes(900)))
        await bookie.adds.get()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    call = adding(transport, batch(bytes(900)))
    await (await bookie.adds.get()).ack()
    assert (await call).status is Status.OK


async def test_a_batch_too_large_for_a_message_is_refused_before_it_breaks_the_stream(
    transport: GrpcTransport, bookie: ScriptedBookie
) -> None:
    call = adding(transport, batch())
    received = await bookie.adds.get()
    assert (await transport.add(BOOKIE, batch(bytes(MESSAGE_BYTES_MAX)), DEADLINE_S)).status is Status.BAD_REQUEST
    await received.ack()
    assert (await call).status is Status.OK


async def test_a_changed_port_causes_a_new_connection(
    transport: GrpcTransport, bookie: ScriptedBookie, directory: Directory, start: Start
) -> None:
    old = adding(transport, batch())
    await bookie.adds.get()
    moved = await start()
    directory.address = BookieAddress("127.0.0.1", moved.port)
    new = adding(transport, batch())
    await (await moved.adds.get()).ack()
    assert (await new).status is Status.OK
    assert (await old).status is Status.UNREACHABLE


async def test_a_changed_incarnation_causes_a_new_connection_and_is_sent_with_each_request(
    transport: GrpcTransport, bookie: ScriptedBookie, directory: Directory
) -> None:
    old = adding(transport, batch())
    assert (await bookie.adds.get()).incarnation == ""
    directory.address = BookieAddress("127.0.0.1", bookie.port, incarnation="new-disks")
    new = adding(transport, batch())
    received = await bookie.adds.get()
    assert received.incarnation == "new-disks"
    await received.ack()
    assert [(await old).status, (await new).status] == [Status.UNREACHABLE, Status.OK]


async def test_a_message_is_for_one_incarnation_and_the_order_of_adds_is_kept(
    transport: GrpcTransport, bookie: ScriptedBookie, directory: Directory
) -> None:
    directory.address = BookieAddress("127.0.0.1", bookie.port, incarnation="registered")
    pins = ["", "pinned", "pinned", "registered", "other", ""]
    calls = [adding(transport, AddBatch(LEDGER, b"key", [bytes([n])], incarnation=pin)) for n, pin in enumerate(pins)]
    received = [await bookie.adds.get() for _ in pins]
    assert [add.message.entries[0] for add in received] == [bytes([n]) for n in range(len(pins))]
    assert [add.incarnation for add in received] == [pin or "registered" for pin in pins]
    for add in received:
        await add.ack()
    assert {(await call).status for call in calls} == {Status.OK}


@pytest.mark.parametrize(
    ("address", "error"),
    [
        (None, None),
        (BookieAddress("127.0.0.1", 1, protocol="bookie-rpc"), None),
        (None, TransientError("the store is silent")),
    ],
)
async def test_bookies_without_a_grpc_address_are_unresolved(
    transport: GrpcTransport, directory: Directory, address: BookieAddress | None, error: TransientError | None
) -> None:
    directory.address, directory.error = address, error
    replies = await every_request(transport, DEADLINE_S)
    assert {status for status, _ in replies} == {Status.UNRESOLVED}
    assert all(BOOKIE in detail for _, detail in replies)


async def test_a_missing_answer_is_a_timeout(transport: GrpcTransport, bookie: ScriptedBookie) -> None:
    assert {status for status, _ in await every_request(transport, SOON_S)} == {Status.TIMEOUT}


async def test_closing_answers_requests_in_flight_and_later_ones(
    transport: GrpcTransport, bookie: ScriptedBookie
) -> None:
    adds = [adding(transport, batch()), adding(transport, batch(bytes(1000)))]  # the second one waits for space
    read = asyncio.create_task(transport.ask(BOOKIE, Read(LEDGER, [EntryId(0)]), DEADLINE_S))
    fence = asyncio.create_task(transport.ask(BOOKIE, Fence(LEDGER, b"key"), DEADLINE_S))
    await bookie.adds.get()
    await transport.close()
    assert [(await add).status for add in adds] == [Status.UNREACHABLE] * 2
    assert ((await read).status, (await fence).status) == (Status.UNREACHABLE, Status.UNREACHABLE)
    assert (await transport.ask(BOOKIE, Info(), DEADLINE_S)).status is Status.UNREACHABLE
    await transport.close()


async def test_a_bookie_that_is_not_running_is_unreachable_at_once(
    transport: GrpcTransport, directory: Directory
) -> None:
    directory.address = BookieAddress("127.0.0.1", 1)
    assert (await transport.add(BOOKIE, batch(), DEADLINE_S)).status is Status.UNREACHABLE
    assert (await transport.ask(BOOKIE, Info(), DEADLINE_S)).status is Status.UNREACHABLE


def piece(*entry_ids: int, **fields: object) -> pb.EntryBatch:
    return pb.EntryBatch(entry_ids=entry_ids, packets=[b"p"] * len(entry_ids), **fields)  # type: ignore[arg-type]


def found(*entry_ids: int) -> tuple[EntryResult, ...]:
    return tuple(EntryResult(EntryId(entry_id), Status.OK, b"p") for entry_id in entry_ids)


@pytest.mark.parametrize(
    ("pieces", "status", "results"),
    [
        ([piece(1, 2), piece(3, is_last=True)], Status.OK, found(1, 2, 3)),
        ([piece(1, 2, is_last=True)], Status.OK, found(1, 2)),
        ([piece(1), piece(is_last=True, status=pb.STATUS_IO_ERROR)], Status.IO_ERROR, found(1)),
        ([piece(1), piece(2)], Status.UNREACHABLE, found(1, 2)),
        ([piece(1), piece(3, is_last=True)], Status.IO_ERROR, found(1)),
        ([piece(1, 2, 3, 4, is_last=True)], Status.IO_ERROR, ()),
        ([piece(9, is_last=True)], Status.IO_ERROR, ()),
        ([piece(is_last=True)], Status.IO_ERROR, ()),
        ([pb.EntryBatch(entry_ids=[1], is_last=True)], Status.IO_ERROR, ()),
    ],
)
async def test_only_answers_to_the_request_are_used(
    transport: GrpcTransport,
    bookie: ScriptedBookie,
    pieces: list[pb.EntryBatch],
    status: Status,
    results: tuple[EntryResult, ...],
) -> None:
    bookie.pieces = pieces
    reply = await transport.ask(BOOKIE, Read(LEDGER, [EntryId(1), EntryId(2), EntryId(3)]), DEADLINE_S)
    assert (reply.status, reply.results) == (status, results)


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (piece(5, is_last=True), ReadReply(Status.OK, found(5))),
        (piece(is_last=True, status=pb.STATUS_NO_LEDGER), ReadReply(Status.NO_LEDGER)),
    ],
)
async def test_a_read_of_the_last_entry_returns_one_entry(
    transport: GrpcTransport, bookie: ScriptedBookie, last: pb.EntryBatch, expected: ReadReply
) -> None:
    bookie.last = last
    assert await transport.ask(BOOKIE, ReadLast(LEDGER), DEADLINE_S) == expected


@pytest.mark.parametrize("last", [piece(is_last=True), piece(5, 6, is_last=True)])
async def test_an_answer_with_no_or_two_last_entries_is_an_error(
    transport: GrpcTransport, bookie: ScriptedBookie, last: pb.EntryBatch
) -> None:
    bookie.last = last
    assert (await transport.ask(BOOKIE, ReadLast(LEDGER), DEADLINE_S)).status is Status.IO_ERROR


@pytest.mark.parametrize(("entry_id", "status"), [(7, Status.OK), (6, Status.IO_ERROR), (8, Status.IO_ERROR)])
async def test_only_the_awaited_entry_may_be_included_in_the_answer(
    transport: GrpcTransport, bookie: ScriptedBookie, entry_id: int, status: Status
) -> None:
    bookie.lac = pb.LacResponse(entry=pb.OneEntry(entry_id=entry_id, packet=b"p"))
    reply = await transport.ask(BOOKIE, WaitLac(LEDGER, EntryId(6), 0.0), DEADLINE_S)
    assert reply.status is status
    assert (await transport.ask(BOOKIE, ReadLac(LEDGER), DEADLINE_S)).status is Status.IO_ERROR


@pytest.mark.parametrize(
    ("pieces", "status"),
    [
        ([pb.EntryList(availability=b"short"), pb.EntryList(is_last=True)], Status.IO_ERROR),
        ([pb.EntryList(availability=bytes(64))], Status.UNREACHABLE),
        ([pb.EntryList(availability=bytes(64)), pb.EntryList(is_last=True)], Status.OK),
    ],
)
async def test_an_incomplete_list_is_an_error(
    transport: GrpcTransport, bookie: ScriptedBookie, pieces: list[pb.EntryList], status: Status
) -> None:
    bookie.pieces = pieces
    assert (await transport.ask(BOOKIE, ListEntries(LEDGER), DEADLINE_S)).status is status


def test_plaintext_must_be_requested_explicitly_and_excludes_tls(directory: Directory) -> None:
    with pytest.raises(InsecureTransportError):
        GrpcTransport(directory)
    with pytest.raises(InsecureTransportError):
        GrpcTransport(directory, tls=TlsSettings(ca=Path("ca.pem")), is_plaintext=True)
