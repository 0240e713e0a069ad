"""The transport over Apache's protocol with bookies that are slow, broken, restarted or answer wrongly (S6, S18)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from bookie.model.errors import TransientError
from bookie.model.ids import EntryId, LedgerId
from bookie.wire.apache import protocol_pb2 as pb
from bookie.wire.apache.framing import FRAME_BYTES_MAX, framed
from bookie.wire.apache.transport import ApacheTransport
from bookie.wire.port import AddBatch, AddReply, Status, Transport
from bookie.wire.requests import Fence, Info, Read, ReadLac, ReadLast
from bookie.wire.resolver import APACHE_PROTOCOL, BookieAddress
from bookie.wire.routing import open_transport
from bookie.wire.security import BookieSecurity
from tests.contract.scripted_apache_bookie import (
    AFTER_AN_ANSWER_S,
    BOOKIE,
    DEADLINE_S,
    KEY,
    LEDGER,
    SOON_S,
    Directory,
    Received,
    ScriptedApacheBookie,
    batch,
    connect,
    entry,
    scripted_bookie,
)
from tests.worlds.requests import one_of_each

Start = Callable[[], Awaitable[ScriptedApacheBookie]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    async with AsyncExitStack() as stack:

        async def run() -> ScriptedApacheBookie:
            return await stack.enter_async_context(scripted_bookie())

        yield run


@pytest.fixture
async def bookie(start: Start) -> ScriptedApacheBookie:
    return await start()


@pytest.fixture
def directory(bookie: ScriptedApacheBookie) -> Directory:
    return Directory(bookie.port)


@pytest.fixture
async def transport(directory: Directory) -> AsyncIterator[ApacheTransport]:
    transport = ApacheTransport(directory, in_flight_bytes_max=1000)
    yield transport
    await transport.close()


def adding(transport: Transport, what: AddBatch, timeout_s: float = DEADLINE_S) -> asyncio.Task[AddReply]:
    return asyncio.create_task(transport.add(BOOKIE, what, timeout_s))


async def every_request(transport: ApacheTransport, timeout_s: float) -> list[tuple[Status, str]]:
    packet = LEDGER.to_bytes(8, "big") + bytes(12)
    replies = await asyncio.gather(
        transport.add(BOOKIE, batch(0), timeout_s),
        *(
            transport.ask(BOOKIE, each, timeout_s)
            for each in one_of_each(LEDGER, KEY, packet, timeout_s, is_apache=True)
        ),
        transport.force(BOOKIE, LEDGER, timeout_s),
    )
    return [(reply.status, reply.detail) for reply in replies]


async def test_acks_in_any_order_reach_the_right_callers(
    transport: ApacheTransport, bookie: ScriptedApacheBookie
) -> None:
    calls = [adding(transport, batch(n)) for n in range(3)]
    received = [await bookie.next(pb.ADD_ENTRY) for _ in calls]
    assert [add.request.addRequest.entryId for add in received] == [0, 1, 2]
    assert len({add.request.header.txnId for add in received}) == 3
    for add, status in zip(reversed(received), (pb.EFENCED, pb.EREADONLY, pb.EOK), strict=True):
        add.answer(status)
    assert [(await call).status for call in calls] == [Status.OK, Status.READ_ONLY, Status.FENCED]


async def test_a_batch_is_sent_as_one_request_for_each_entry_in_order(
    transport: ApacheTransport, bookie: ScriptedApacheBookie
) -> None:
    call = adding(transport, batch(3, 1, 2))
    received = [await bookie.next(pb.ADD_ENTRY) for _ in range(3)]
    assert [add.request.addRequest.body for add in received] == [entry(n, b"x") for n in (3, 1, 2)]
    assert all(add.request.addRequest.masterKey == KEY for add in received)
    assert not any(add.request.addRequest.HasField("writeFlags") for add in received)
    for add in received:
        add.answer()
    assert (await call).status is Status.OK


@pytest.mark.parametrize(
    ("codes", "status"),
    [
        ((pb.EOK, pb.EOK), Status.OK),
        ((pb.EOK, pb.EIO), Status.IO_ERROR),
        ((pb.EIO, pb.EFENCED), Status.FENCED),
        ((pb.EUA, pb.EREADONLY), Status.UNAUTHORIZED),
        ((pb.ETOOMANYREQUESTS, pb.EIO), Status.TOO_MANY_REQUESTS),
        ((pb.ENOLEDGER, pb.EOK), Status.NO_LEDGER),
        ((pb.EBADVERSION, pb.EOK), Status.BAD_REQUEST),
    ],
)
async def test_a_batch_succeeds_if_all_its_adds_do_and_else_has_the_most_specific_failure(
    transport: ApacheTransport, bookie: ScriptedApacheBookie, codes: tuple[int, int], status: Status
) -> None:
    call = adding(transport, batch(0, 1))
    for code in codes:
        (await bookie.next(pb.ADD_ENTRY)).answer(code)
    assert (await call).status is status


async def test_the_known_result_of_a_batch_survives_its_deadline_and_its_connection(
    transport: ApacheTransport, bookie: ScriptedApacheBookie
) -> None:
    call = adding(transport, batch(0, 1), AFTER_AN_ANSWER_S)
    (await bookie.next(pb.ADD_ENTRY)).answer(pb.EFENCED)
    assert (await call).status is Status.FENCED
    await bookie.next(pb.ADD_ENTRY)
    call = adding(transport, batch(0, 1))
    (await bookie.next(pb.ADD_ENTRY)).answer(pb.EFENCED)
    bookie.clients[0].disconnect()
    assert (await call).status is Status.FENCED


async def test_only_recovery_adds_carry_the_flag_and_the_priority(
    transport: ApacheTransport, bookie: ScriptedApacheBookie
) -> None:
    for is_recovery in (False, True):
        call = adding(transport, batch(0, is_recovery=is_recovery))
        received = await bookie.next(pb.ADD_ENTRY)
        assert received.request.addRequest.HasField("flag") is is_recovery
        assert received.request.header.priority == (100 if is_recovery else 0)
        received.answer()
        assert (await call).status is Status.OK


async def test_answers_that_match_no_request_are_dropped(
    transport: ApacheTransport, bookie: ScriptedApacheBookie
) -> None:
    call = adding(transport, batch(5))
    received = await bookie.next(pb.ADD_ENTRY)
    other = received.answered(pb.EFENCED)
    other.header.txnId += 1
    received.client.send(other.SerializeToString())
    received.client.send(received.response(pb.EFENCED, operation=pb.READ_LAC).SerializeToString())
    received.answer(pb.EFENCED, ledgerId=LEDGER + 1)
    received.answer(pb.EFENCED, entryId=6)
    received.answer(pb.EOK)
    received.answer(pb.EFENCED)
    assert (await call).status is Status.OK
    assert len(bookie.clients) == 1


async def test_a_late_answer_is_not_taken_for_the_next_request(
    transport: ApacheTransport, bookie: ScriptedApacheBookie
) -> None:
    await connect(transport, bookie)
    assert (await transport.add(BOOKIE, batch(0), SOON_S)).status is Status.TIMEOUT
    late = await bookie.next(pb.ADD_ENTRY)
    call = adding(transport, batch(0))
    received = await bookie.next(pb.ADD_ENTRY)
    late.answer(pb.EOK)
    received.answer(pb.EFENCED)
    assert (await call).status is Status.FENCED


def _unknown_code(received: Received) -> bytes:
    return received.answered().SerializeToString().replace(b"\x08\x00", b"\x08\x63")


def _unknown_operation(received: Received) -> bytes:
    return received.answered().SerializeToString().replace(b"\x10\x02", b"\x10\x63", 1)


INVALID_ANSWERS: dict[str, Callable[[Received], bytes]] = {
    "not a message": lambda received: b"\xff" * 20,
    "no header": lambda received: b"\x10\x00",
    "no status": lambda received: received.response().header.SerializeToString(),
    "OK without content": lambda received: received.response().SerializeToString(),
    "no such ledger without content": lambda received: received.response(pb.ENOLEDGER).SerializeToString(),
    "no such entry without content": lambda received: received.response(pb.ENOENTRY).SerializeToString(),
    "half of the content": lambda received: received.answered().SerializeToString()[:-3],
    "unknown code": _unknown_code,
    "unknown operation": _unknown_operation,
}


@pytest.mark.parametrize("nonsense", INVALID_ANSWERS.values(), ids=INVALID_ANSWERS.keys())
async def test_a_malformed_answer_ends_the_connection(
    transport: ApacheTransport, bookie: ScriptedApacheBookie, nonsense: Callable[[Received], bytes]
) -> None:
    calls = [adding(transport, batch(n)) for n in range(2)]
    received = [await bookie.next(pb.ADD_ENTRY) for _ in calls][1]
    received.client.send(nonsense(received))
    replies = [await call for call in calls]
    assert [reply.status for reply in replies] == [Status.UNREACHABLE] * 2
    assert all("not a message of its protocol" in reply.detail for reply in replies)
    await received.client.is_lost.wait()
    await is_reachable_again(transport, bookie)


async def is_reachable_again(transport: ApacheTransport, bookie: ScriptedApacheBookie) -> None:
    call = adding(transport, batch(9))
    (await bookie.next(pb.ADD_ENTRY)).answer()
    assert (await call).status is Status.OK
    assert bookie.requests.empty()  # requests in flight were not sent again


@pytest.mark.parametrize("length", [0, -1, (1 << 30) - 3, (1 << 31) - 1])
async def test_an_impossible_frame_ends_the_connection(
    transport: ApacheTransport, bookie: ScriptedApacheBookie, length: int
) -> None:
    call = adding(transport, batch(0))
    received = await bookie.next(pb.ADD_ENTRY)
    received.client.send_raw(length.to_bytes(4, "big", signed=True))
    assert (await call).status is Status.UNREACHABLE
    await is_reachable_again(transport, bookie)


def too_long(received: Received) -> bytes:
    """Return the frame of an answer with an entry too long for a client's default limit."""
    packet = entry(received.request.readRequest.entryId, bytes(FRAME_BYTES_MAX))
    return framed(received.answered(body=packet).SerializeToString())


async def in_pieces(received: Received, frame: bytes) -> None:
    """Send the first bytes one by one, each in a separate read, and the rest together."""
    for start in range(80):
        received.client.send_raw(frame[start : start + 1])
        await asyncio.sleep(0)
    received.client.send_raw(frame[80:])


async def test_a_too_long_entry_is_an_io_error_of_that_entry_only(
    transport: ApacheTransport, bookie: ScriptedApacheBookie
) -> None:
    add = adding(transport, batch(0))
    added = await bookie.next(pb.ADD_ENTRY)
    read = asyncio.create_task(transport.ask(BOOKIE, Read(LEDGER, list(map(EntryId, range(3)))), DEADLINE_S))
    reads = [await bookie.next(pb.READ_ENTRY) for _ in range(3)]
    reads[0].answer(body=entry(0))
    await in_pieces(reads[1], too_long(reads[1]))
    reads[2].answer(body=entry(2))
    added.answer()
    reply = await read
    assert [result.status for result in reply.results] == [Status.OK, Status.IO_ERROR, Status.OK]
    assert "exceeds the limit of 5304096: raise --frame-bytes-max" in reply.results[1].detail
    assert (reply.status, (await add).status) == (Status.OK, Status.OK)
    assert len(bookie.clients) == 1


async def test_a_too_long_last_entry_is_reported_to_the_caller(
    transport: ApacheTransport, bookie: ScriptedApacheBookie
) -> None:
    def react(received: Received) -> None:
        packet = entry(0, bytes(FRAME_BYTES_MAX))
        if received.operation == pb.READ_LAC:
            received.answer(lastEntryBody=packet)
        else:
            received.answer(body=packet)

    bookie.react = react
    replies = await asyncio.gather(
        transport.ask(BOOKIE, ReadLast(LEDGER), DEADLINE_S),
        transport.ask(BOOKIE, ReadLac(LEDGER), DEADLINE_S),
        transport.ask(BOOKIE, Fence(LEDGER, KEY), DEADLINE_S),
    )
    assert [reply.status for reply in replies] == [Status.IO_ERROR] * 3
    assert all("raise --frame-bytes-max" in reply.detail for reply in replies)


@pytest.mark.parametrize(
    "head", [bytes(64), b"\x0a" + bytes(63), b"\x0a\x7f" + bytes(62), b"\x0a\x02\x08\x03" + bytes(60)]
)
async def test_a_long_frame_without_a_valid_header_ends_the_connection(
    transport: ApacheTransport, bookie: ScriptedApacheBookie, head: bytes
) -> None:
    call = adding(transport, batch(0))
    received = await bookie.next(pb.ADD_ENTRY)
    received.client.send_raw(FRAME_BYTES_MAX.to_bytes(4, "big") + head)
    assert (await call).status is Status.UNREACHABLE
    await is_reachable_again(transport, bookie)


async def test_a_long_answer_to_no_request_is_skipped(transport: ApacheTransport, bookie: ScriptedApacheBookie) -> None:
    call = adding(transport, batch(0))
    received = await bookie.next(pb.ADD_ENTRY)
    for other in (received.response(txn_id=99), received.response(operation=pb.READ_ENTRY)):
        other.readResponse.CopyFrom(pb.ReadResponse(status=pb.EOK, ledgerId=LEDGER, entryId=0))
        other.readResponse.body = bytes(FRAME_BYTES_MAX)
        received.client.send(other.SerializeToString())
    received.answer()
    assert (await call).status is Status.OK


async def check_it_passes(transport: Transport, bookie: ScriptedApacheBookie, packet: bytes) -> None:
    """Add and read an entry."""
    call = adding(transport, AddBatch(LEDGER, KEY, [packet]))
    received = await bookie.next(pb.ADD_ENTRY)
    assert received.request.addRequest.body == packet
    received.answer()
    assert (await call).status is Status.OK
    read = asyncio.create_task(transport.ask(BOOKIE, Read(LEDGER, [EntryId(0)]), DEADLINE_S))
    (await bookie.next(pb.READ_ENTRY)).answer(body=packet)
    assert (await read).results[0].packet == packet


async def test_longer_frames_are_accepted_if_the_limit_allows_them(
    directory: Directory, bookie: ScriptedApacheBookie
) -> None:
    transport = open_transport(directory, BookieSecurity(frame_bytes_max=3 * FRAME_BYTES_MAX))
    await check_it_passes(transport, bookie, entry(0, bytes(2 * FRAME_BYTES_MAX)))
    await transport.close()


async def test_requests_on_a_broken_connection_are_unreachable_and_the_next_one_reconnects(
    transport: ApacheTransport, bookie: ScriptedApacheBookie
) -> None:
    calls = [adding(transport, batch(n)) for n in range(2)]
    read = asyncio.create_task(transport.ask(BOOKIE, Read(LEDGER, [EntryId(0)]), DEADLINE_S))
    received = [await bookie.requests.get() for _ in range(3)]
    received[0].client.disconnect()
    assert [(await call).status for call in calls] == [Status.UNREACHABLE] * 2
    assert (await read).status is Status.UNREACHABLE
    await is_reachable_again(transport, bookie)


async def test_adds_wait_for_room_in_order(transport: ApacheTransport, bookie: ScriptedApacheBookie) -> None:
    large, blocked, small = (adding(transport, batch(n, payload=bytes(size))) for n, size in enumerate((600, 600, 1)))
    first = await bookie.next(pb.ADD_ENTRY)
    await connect(transport, bookie)  # after this round trip, everything sent before has arrived
    assert bookie.requests.empty()
    first.answer()
    rest = [await bookie.next(pb.ADD_ENTRY) for _ in range(2)]
    assert [add.request.addRequest.entryId for add in rest] == [1, 2]
    for add in rest:
        add.answer()
    assert {(await call).status for call in (large, blocked, small)} == {Status.OK}


async def test_an_add_that_waits_for_room_times_out(transport: ApacheTransport, bookie: ScriptedApacheBookie) -> None:
    call = adding(transport, batch(0, payload=bytes(600)))
    received = await bookie.next(pb.ADD_ENTRY)
    assert (await transport.add(BOOKIE, batch(1, payload=bytes(600)), SOON_S)).status is Status.TIMEOUT
    received.answer()
    assert (await call).status is Status.OK
    assert bookie.requests.empty()


async def test_cancelled_adds_release_their_room(transport: ApacheTransport, bookie: ScriptedApacheBookie) -> None:
    for n in range(3):
        call = adding(transport, batch(n, payload=bytes(900)))
        await bookie.next(pb.ADD_ENTRY)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    call = adding(transport, batch(3, payload=bytes(900)))
    (await bookie.next(pb.ADD_ENTRY)).answer()
    assert (await call).status is Status.OK


async def test_a_bookie_that_does_not_read_makes_adds_wait_and_time_out(
    directory: Directory, bookie: ScriptedApacheBookie
) -> None:
    bookie.is_deaf = True
    transport = ApacheTransport(directory, in_flight_bytes_max=64 << 20)
    calls = [adding(transport, batch(n, payload=bytes(4 << 20)), SOON_S) for n in range(8)]
    assert {(await call).status for call in calls} == {Status.TIMEOUT}
    await transport.close()


async def test_an_entry_too_large_for_any_frame_is_refused_before_it_breaks_the_connection(
    transport: ApacheTransport, bookie: ScriptedApacheBookie
) -> None:
    call = adding(transport, batch(0))
    received = await bookie.next(pb.ADD_ENTRY)
    too_large = batch(1, payload=bytes(FRAME_BYTES_MAX - 100))
    assert (await transport.add(BOOKIE, too_large, DEADLINE_S)).status is Status.BAD_REQUEST
    received.answer()
    assert (await call).status is Status.OK


async def test_the_largest_entry_can_be_sent_in_both_directions(
    directory: Directory, bookie: ScriptedApacheBookie
) -> None:
    transport = ApacheTransport(directory)
    await check_it_passes(transport, bookie, entry(0, bytes(FRAME_BYTES_MAX - 200)))
    await transport.close()


async def test_a_changed_port_causes_a_new_connection(
    transport: ApacheTransport, bookie: ScriptedApacheBookie, directory: Directory, start: Start
) -> None:
    old = adding(transport, batch(0))
    await bookie.next(pb.ADD_ENTRY)
    moved = await start()
    directory.address = BookieAddress("127.0.0.1", moved.port, APACHE_PROTOCOL)
    new = adding(transport, batch(0))
    (await moved.next(pb.ADD_ENTRY)).answer()
    assert (await new).status is Status.OK
    assert (await old).status is Status.UNREACHABLE


async def test_batches_for_an_incarnation_are_refused_if_it_is_not_the_registered_one(
    transport: ApacheTransport, bookie: ScriptedApacheBookie, directory: Directory
) -> None:
    pinned = AddBatch(LEDGER, KEY, [entry(0)], incarnation="these")
    assert (await transport.add(BOOKIE, pinned, DEADLINE_S)).status is Status.WRONG_INCARNATION
    directory.address = BookieAddress("127.0.0.1", bookie.port, APACHE_PROTOCOL, incarnation="others")
    assert (await transport.add(BOOKIE, pinned, DEADLINE_S)).status is Status.WRONG_INCARNATION
    directory.address = BookieAddress("127.0.0.1", bookie.port, APACHE_PROTOCOL, incarnation="these")
    call = adding(transport, pinned)
    (await bookie.next(pb.ADD_ENTRY)).answer()
    assert (await call).status is Status.OK


@pytest.mark.parametrize(
    ("address", "error"),
    [
        (None, None),
        (BookieAddress("127.0.0.1", 1), None),
        (None, TransientError("the store is silent")),
    ],
)
async def test_bookies_without_an_address_of_this_protocol_are_unresolved(
    transport: ApacheTransport, directory: Directory, address: BookieAddress | None, error: TransientError | None
) -> None:
    directory.address, directory.error = address, error
    replies = await every_request(transport, DEADLINE_S)
    assert {status for status, _ in replies} == {Status.UNRESOLVED}
    assert all(BOOKIE in detail for _, detail in replies)


async def test_a_missing_answer_is_a_timeout(transport: ApacheTransport, bookie: ScriptedApacheBookie) -> None:
    assert {status for status, _ in await every_request(transport, SOON_S)} == {Status.TIMEOUT}


async def test_closing_answers_requests_in_flight_and_later_ones(
    transport: ApacheTransport, bookie: ScriptedApacheBookie
) -> None:
    adds = [adding(transport, batch(n, payload=bytes(900))) for n in range(2)]  # the second one waits for space
    read = asyncio.create_task(transport.ask(BOOKIE, Read(LEDGER, [EntryId(0)]), DEADLINE_S))
    fence = asyncio.create_task(transport.ask(BOOKIE, Fence(LEDGER, KEY), DEADLINE_S))
    for _ in range(3):
        await bookie.requests.get()
    await transport.close()
    assert [(await add).status for add in adds] == [Status.UNREACHABLE] * 2
    assert ((await read).status, (await fence).status) == (Status.UNREACHABLE, Status.UNREACHABLE)
    assert (await transport.ask(BOOKIE, Info(), DEADLINE_S)).status is Status.UNREACHABLE
    await transport.close()


async def test_a_bookie_that_is_not_running_is_unreachable_at_once(
    transport: ApacheTransport, directory: Directory
) -> None:
    directory.address = BookieAddress("127.0.0.1", 1, APACHE_PROTOCOL)
    replies = await every_request(transport, DEADLINE_S)
    assert {status for status, _ in replies} == {Status.UNREACHABLE}
    assert all("cannot connect to 127.0.0.1:1" in detail for _, detail in replies)


@pytest.mark.parametrize(
    ("host", "port"),
    [
        ("a" * 70 + ".example", 3181),
        ("..", 3181),
        ("a\0b", 3181),
        ("127.0.0.1", 70_000),
        ("localhost", 70_000),  # its lower 16 bits are the port of another program
        ("127.0.0.1", -1),
        ("localhost", -1),
    ],
)
async def test_an_invalid_address_is_unreachable(
    transport: ApacheTransport, directory: Directory, host: str, port: int
) -> None:
    directory.address = BookieAddress(host, port, APACHE_PROTOCOL)
    reply = await transport.ask(BOOKIE, Info(), DEADLINE_S)
    assert reply.status is Status.UNREACHABLE
    assert "cannot connect" in reply.detail
    assert "4464" not in reply.detail


async def test_a_refusal_without_content_refuses_the_request(
    transport: ApacheTransport, bookie: ScriptedApacheBookie
) -> None:
    bookie.react = lambda received: received.refuse(pb.EBADREQ)
    assert {status for status, _ in await every_request(transport, DEADLINE_S)} == {Status.BAD_REQUEST}
    assert len(bookie.clients) == 1


async def test_a_bookie_that_requires_a_login_is_not_reported_as_a_wrong_ledger_password(
    transport: ApacheTransport, bookie: ScriptedApacheBookie
) -> None:
    bookie.react = lambda received: received.refuse(pb.EUA)
    replies = await every_request(transport, DEADLINE_S)
    assert {status for status, _ in replies} == {Status.UNREACHABLE}
    assert all("a login (give --sasl-username" in detail for _, detail in replies)


async def test_contradictory_statuses_in_an_answer_are_neither_success_nor_absence(
    transport: ApacheTransport, bookie: ScriptedApacheBookie
) -> None:
    for inside, outside in ((pb.EOK, pb.EIO), (pb.EIO, pb.EOK), (pb.EOK, pb.ENOENTRY), (pb.ENOLEDGER, pb.EOK)):
        call = adding(transport, batch(0))
        received = await bookie.next(pb.ADD_ENTRY)
        response = received.answered(outside)
        response.addResponse.status = inside
        received.client.send(response.SerializeToString())
        assert (await call).status is Status.IO_ERROR


async def test_calls_for_several_ledgers_share_one_connection(
    transport: ApacheTransport, bookie: ScriptedApacheBookie
) -> None:
    bookie.react = lambda received: received.answer()
    replies = await asyncio.gather(*(transport.add(BOOKIE, batch(0, ledger_id=n), DEADLINE_S) for n in range(20)))
    assert {reply.status for reply in replies} == {Status.OK}
    assert len(bookie.clients) == 1


async def test_ledger_keys_do_not_appear_in_details(transport: ApacheTransport, bookie: ScriptedApacheBookie) -> None:
    key = b"very-secret-master-k"
    bookie.react = lambda received: received.answer(pb.EUA)
    replies = [
        await transport.add(BOOKIE, AddBatch(LedgerId(7), key, [entry(0)]), DEADLINE_S),
        await transport.ask(BOOKIE, Fence(LEDGER, key), DEADLINE_S),
    ]
    assert [reply.status for reply in replies] == [Status.UNAUTHORIZED] * 2  # type: ignore[attr-defined]
    assert "very-secret" not in repr(replies)
