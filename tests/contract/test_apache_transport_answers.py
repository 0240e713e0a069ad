"""The transport's result for each answer over Apache's protocol, and the requests it sends.

Source: docs/formats.md#operations, #recovery.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from bookie.model.availability import EntryRuns
from bookie.model.ids import NO_ENTRY, EntryId, LedgerId
from bookie.wire.apache import protocol_pb2 as pb
from bookie.wire.apache.listing import LIST_SILENCE_S
from bookie.wire.apache.transport import ApacheTransport
from bookie.wire.port import (
    READ_BYTES_MAX,
    READ_ENTRIES_MAX,
    AddReply,
    BookieInfo,
    EntryResult,
    FenceReply,
    InfoReply,
    LacReply,
    ReadReply,
    Status,
)
from bookie.wire.requests import Fence, Info, ListEntries, Read, ReadLac, ReadLast, WaitLac, WriteLac
from tests.contract.scripted_apache_bookie import (
    AFTER_AN_ANSWER_S,
    BOOKIE,
    DEADLINE_S,
    KEY,
    LEDGER,
    Directory,
    Received,
    ScriptedApacheBookie,
    entry,
    scripted_bookie,
)

EXPLICIT = LEDGER.to_bytes(8, "big") + (5).to_bytes(8, "big") + b"sum!"


@pytest.fixture
async def bookie() -> AsyncIterator[ScriptedApacheBookie]:
    async with scripted_bookie() as bookie:
        yield bookie


@pytest.fixture
async def transport(bookie: ScriptedApacheBookie) -> AsyncIterator[ApacheTransport]:
    transport = ApacheTransport(Directory(bookie.port), list_silence_s=LIST_SILENCE_S)
    yield transport
    await transport.close()


def reading(transport: ApacheTransport, *entry_ids: int, fence_key: bytes | None = None) -> asyncio.Task[ReadReply]:
    wanted = [EntryId(entry_id) for entry_id in entry_ids]
    return asyncio.create_task(transport.ask(BOOKIE, Read(LEDGER, wanted, fence_key=fence_key), DEADLINE_S))


def found(*entry_ids: int) -> tuple[EntryResult, ...]:
    return tuple(EntryResult(EntryId(entry_id), Status.OK, entry(entry_id)) for entry_id in entry_ids)


async def test_entries_are_returned_in_the_requested_order_whatever_the_order_of_the_answers(
    transport: ApacheTransport, bookie: ScriptedApacheBookie
) -> None:
    call = reading(transport, 1, 2, 3)
    received = [await bookie.next(pb.READ_ENTRY) for _ in range(3)]
    for one in reversed(received):
        assert not one.request.readRequest.HasField("flag")
        assert not one.request.readRequest.HasField("masterKey")
        one.answer(body=entry(one.request.readRequest.entryId))
    assert await call == ReadReply(Status.OK, found(1, 2, 3))


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (pb.ENOENTRY, Status.NO_ENTRY),
        (pb.ENOLEDGER, Status.NO_LEDGER),
        (pb.EUNKNOWNLEDGERSTATE, Status.LIMBO),
        (pb.EIO, Status.IO_ERROR),
    ],
)
async def test_a_fault_of_one_entry_does_not_affect_the_others(
    transport: ApacheTransport, bookie: ScriptedApacheBookie, code: int, status: Status
) -> None:
    call = reading(transport, 1, 2, 3)
    for _ in range(3):
        received = await bookie.next(pb.READ_ENTRY)
        if received.request.readRequest.entryId == 2:
            received.answer(code)
        else:
            received.answer(body=entry(received.request.readRequest.entryId))
    [one, three] = found(1, 3)
    assert await call == ReadReply(Status.OK, (one, EntryResult(EntryId(2), status), three))


@pytest.mark.parametrize(
    ("code", "status"), [(pb.ETOOMANYREQUESTS, Status.TOO_MANY_REQUESTS), (pb.EUA, Status.UNAUTHORIZED)]
)
async def test_a_refusal_ends_the_read_after_the_entries_before_it(
    transport: ApacheTransport, bookie: ScriptedApacheBookie, code: int, status: Status
) -> None:
    call = reading(transport, 1, 2, 3)
    received = [await bookie.next(pb.READ_ENTRY) for _ in range(3)]
    received[0].answer(body=entry(1))
    received[1].answer(code)
    assert await call == ReadReply(status, found(1))


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (entry(2), Status.CORRUPT),
        (entry(1, ledger_id=8), Status.CORRUPT),
        (entry(1)[:20], Status.CORRUPT),
        (b"", Status.CORRUPT),
    ],
    ids=["another entry", "another ledger", "no header", "nothing"],
)
async def test_bytes_of_another_entry_are_corruption(
    transport: ApacheTransport, bookie: ScriptedApacheBookie, body: bytes, status: Status
) -> None:
    call = reading(transport, 1)
    (await bookie.next(pb.READ_ENTRY)).answer(body=body)
    assert await call == ReadReply(Status.OK, (EntryResult(EntryId(1), status),))


async def test_an_ok_without_bytes_is_an_error_and_not_absence(
    transport: ApacheTransport, bookie: ScriptedApacheBookie
) -> None:
    call = reading(transport, 1)
    (await bookie.next(pb.READ_ENTRY)).answer()
    assert [result.status for result in (await call).results] == [Status.IO_ERROR]


async def test_many_entries_are_read_with_a_bounded_number_of_requests_in_flight(
    transport: ApacheTransport, bookie: ScriptedApacheBookie
) -> None:
    unanswered: list[Received] = []
    most = 0

    def react(received: Received) -> None:
        nonlocal most
        unanswered.append(received)
        most = max(most, len(unanswered))
        asyncio.get_running_loop().call_soon(answer)

    def answer() -> None:
        while unanswered:
            one = unanswered.pop()
            one.answer(body=entry(one.request.readRequest.entryId))

    bookie.react = react
    reply = await reading(transport, *range(READ_ENTRIES_MAX))
    assert reply == ReadReply(Status.OK, found(*range(READ_ENTRIES_MAX)))
    assert most <= 64


async def test_a_read_ends_at_its_byte_limit_and_requests_little_more(
    transport: ApacheTransport, bookie: ScriptedApacheBookie
) -> None:
    payload, asked = bytes(1 << 20), 0

    def react(received: Received) -> None:
        nonlocal asked
        asked += 1
        received.answer(body=entry(received.request.readRequest.entryId, payload))

    bookie.react = react
    reply = await reading(transport, *range(100))
    assert reply.status is Status.OK
    assert sum(len(result.packet) for result in reply.results[:-1]) < READ_BYTES_MAX
    assert sum(len(result.packet) for result in reply.results) >= READ_BYTES_MAX
    assert asked <= 24


async def test_small_entries_at_the_start_do_not_raise_the_number_of_later_requests(
    transport: ApacheTransport, bookie: ScriptedApacheBookie
) -> None:
    asked: list[int] = []

    def react(received: Received) -> None:
        entry_id = received.request.readRequest.entryId
        asked.append(entry_id)
        if entry_id < 2:
            received.answer(body=entry(entry_id))

    bookie.react = react
    reply = await transport.ask(BOOKIE, Read(LEDGER, [EntryId(number) for number in range(100)]), AFTER_AN_ANSWER_S)
    assert reply.status is Status.TIMEOUT
    assert reply.results == found(0, 1)
    assert len(asked) <= 20  # each entry may be as large as a frame


async def test_entries_received_before_the_deadline_are_returned(
    transport: ApacheTransport, bookie: ScriptedApacheBookie
) -> None:
    call = asyncio.create_task(transport.ask(BOOKIE, Read(LEDGER, [EntryId(1), EntryId(2)]), AFTER_AN_ANSWER_S))
    (await bookie.next(pb.READ_ENTRY)).answer(body=entry(1))
    reply = await call
    assert (reply.status, reply.results) == (Status.TIMEOUT, found(1))


async def test_a_fencing_read_fences_first_and_reads_as_recovery_does(
    transport: ApacheTransport, bookie: ScriptedApacheBookie
) -> None:
    call = reading(transport, 1, fence_key=KEY)
    fence = await bookie.next(pb.READ_ENTRY)
    assert (fence.request.readRequest.entryId, fence.request.header.priority) == (-1, 0)
    assert bookie.requests.empty()
    fence.answer(body=entry(1))
    read = await bookie.next(pb.READ_ENTRY)
    asked = read.request.readRequest
    assert (asked.entryId, asked.flag, asked.masterKey) == (1, pb.ReadRequest.FENCE_LEDGER, KEY)
    assert read.request.header.priority == 100
    read.answer(body=entry(1))
    assert await call == ReadReply(Status.OK, found(1))


@pytest.mark.parametrize("code", [pb.EUA, pb.EIO, pb.ETOOMANYREQUESTS, pb.EBADREQ])
async def test_nothing_is_read_if_the_fence_fails(
    transport: ApacheTransport, bookie: ScriptedApacheBookie, code: int
) -> None:
    call = reading(transport, 1, fence_key=KEY)
    (await bookie.next(pb.READ_ENTRY)).answer(code)
    reply = await call
    assert reply.status not in (Status.OK, Status.NO_ENTRY, Status.NO_LEDGER)
    assert reply.results == ()
    assert bookie.requests.empty()


async def test_a_fence_returns_the_true_id_of_the_last_entry(
    transport: ApacheTransport, bookie: ScriptedApacheBookie
) -> None:
    call = asyncio.create_task(transport.ask(BOOKIE, Fence(LEDGER, KEY), DEADLINE_S))
    received = await bookie.next(pb.READ_ENTRY)
    asked = received.request.readRequest
    assert (asked.ledgerId, asked.entryId, asked.masterKey) == (LEDGER, -1, KEY)
    assert asked.flag == pb.ReadRequest.FENCE_LEDGER
    assert not received.request.header.HasField("priority")
    received.answer(body=entry(4))
    assert await call == FenceReply(Status.OK, found(4)[0])


@pytest.mark.parametrize("code", [pb.ENOENTRY, pb.ENOLEDGER, pb.EUNKNOWNLEDGERSTATE])
@pytest.mark.parametrize("forced", [pb.EOK, pb.EIO, pb.EBADREQ])
async def test_a_fence_that_found_no_entry_succeeds_only_after_the_journal_was_forced(
    transport: ApacheTransport, bookie: ScriptedApacheBookie, code: int, forced: int
) -> None:
    call = asyncio.create_task(transport.ask(BOOKIE, Fence(LEDGER, KEY), DEADLINE_S))
    (await bookie.next(pb.READ_ENTRY)).answer(code)
    force = await bookie.next(pb.FORCE_LEDGER)
    assert force.request.forceLedgerRequest.ledgerId == LEDGER
    assert not call.done()
    force.answer(forced)
    reply = await call
    if forced != pb.EOK:
        assert reply.status in (Status.IO_ERROR, Status.BAD_REQUEST)
        assert "not known to be durable" in reply.detail
    elif code == pb.EUNKNOWNLEDGERSTATE:
        assert reply == FenceReply(Status.OK, EntryResult(NO_ENTRY, Status.LIMBO))
    else:
        assert reply == FenceReply(Status.OK, None)


async def test_a_fence_that_returns_another_ledgers_entry_is_corrupt(
    transport: ApacheTransport, bookie: ScriptedApacheBookie
) -> None:
    call = asyncio.create_task(transport.ask(BOOKIE, Fence(LEDGER, KEY), DEADLINE_S))
    (await bookie.next(pb.READ_ENTRY)).answer(body=entry(4, ledger_id=8))
    assert await call == FenceReply(Status.OK, EntryResult(NO_ENTRY, Status.CORRUPT))


@pytest.mark.parametrize(
    ("code", "body", "expected"),
    [
        (pb.EOK, entry(9), ReadReply(Status.OK, found(9))),
        (pb.ENOLEDGER, None, ReadReply(Status.OK, (EntryResult(NO_ENTRY, Status.NO_LEDGER),))),
        (pb.EUNKNOWNLEDGERSTATE, None, ReadReply(Status.OK, (EntryResult(NO_ENTRY, Status.LIMBO),))),
        (pb.EOK, entry(-5), ReadReply(Status.OK, (EntryResult(NO_ENTRY, Status.CORRUPT),))),
        (pb.EIO, None, ReadReply(Status.IO_ERROR)),
    ],
)
async def test_the_id_of_the_last_entry_is_read_from_its_own_header(
    transport: ApacheTransport, bookie: ScriptedApacheBookie, code: int, body: bytes | None, expected: ReadReply
) -> None:
    call = asyncio.create_task(transport.ask(BOOKIE, ReadLast(LEDGER), DEADLINE_S))
    (await bookie.next(pb.READ_ENTRY)).answer(code, **({} if body is None else {"body": body}))
    assert await call == expected


async def test_lacs_are_returned_unchanged(transport: ApacheTransport, bookie: ScriptedApacheBookie) -> None:
    call = asyncio.create_task(transport.ask(BOOKIE, ReadLac(LEDGER), DEADLINE_S))
    (await bookie.next(pb.READ_LAC)).answer(lacBody=EXPLICIT, lastEntryBody=entry(7))
    assert await call == LacReply(Status.OK, EXPLICIT, found(7)[0])


@pytest.mark.parametrize(
    ("code", "explicit"), [(pb.ENOENTRY, b""), (pb.EIO, EXPLICIT), (pb.ENOLEDGER, b""), (pb.EUNKNOWNLEDGERSTATE, b"")]
)
@pytest.mark.parametrize(
    ("last", "status"),
    [
        (pb.ENOENTRY, Status.NO_ENTRY),
        (pb.ENOLEDGER, Status.NO_LEDGER),
        (pb.EUNKNOWNLEDGERSTATE, Status.LIMBO),
        (pb.EIO, Status.IO_ERROR),
        (pb.ETOOMANYREQUESTS, Status.TOO_MANY_REQUESTS),
    ],
)
async def test_without_a_last_entry_a_plain_read_distinguishes_unknown_empty_and_limbo(
    transport: ApacheTransport, bookie: ScriptedApacheBookie, code: int, explicit: bytes, last: int, status: Status
) -> None:
    call = asyncio.create_task(transport.ask(BOOKIE, ReadLac(LEDGER), DEADLINE_S))
    (await bookie.next(pb.READ_LAC)).answer(code, **({"lacBody": explicit} if explicit else {}))
    read = await bookie.next(pb.READ_ENTRY)
    assert (read.request.readRequest.entryId, read.request.readRequest.HasField("flag")) == (-1, False)
    read.answer(last)
    assert await call == LacReply(status, explicit)


@pytest.mark.parametrize("is_with_entry", [True, False])
async def test_the_last_entry_of_a_ledger_in_limbo_is_reported_as_uncertain(
    transport: ApacheTransport, bookie: ScriptedApacheBookie, *, is_with_entry: bool
) -> None:
    call = asyncio.create_task(transport.ask(BOOKIE, ReadLac(LEDGER), DEADLINE_S))
    received = await bookie.next(pb.READ_LAC)
    if is_with_entry:
        received.answer(pb.EUNKNOWNLEDGERSTATE, lastEntryBody=entry(7))
    else:
        received.answer(pb.EUNKNOWNLEDGERSTATE)
        (await bookie.next(pb.READ_ENTRY)).answer(entryId=-1, body=entry(7))
    assert await call == LacReply(Status.LIMBO, b"", found(7)[0])


async def test_an_entry_that_arrives_between_the_two_requests_is_found(
    transport: ApacheTransport, bookie: ScriptedApacheBookie
) -> None:
    call = asyncio.create_task(transport.ask(BOOKIE, ReadLac(LEDGER), DEADLINE_S))
    (await bookie.next(pb.READ_LAC)).answer(pb.ENOENTRY)
    (await bookie.next(pb.READ_ENTRY)).answer(body=entry(0))
    assert await call == LacReply(Status.OK, b"", found(0)[0])


@pytest.mark.parametrize(
    ("code", "content", "piggybacked"),
    [
        (pb.EOK, {"maxLAC": 8, "entryId": 7, "body": entry(7)}, found(7)[0]),
        (pb.EOK, {"maxLAC": 8}, None),
        (pb.EOK, {"maxLAC": 6}, None),
        (pb.EOK, {"maxLAC": 8, "entryId": 8, "body": entry(8)}, None),
        (pb.EOK, {"maxLAC": 8, "entryId": 7, "body": entry(7, ledger_id=8)}, None),
        (pb.EIO, {}, None),
    ],
    ids=["with the answer", "not on this bookie", "nothing new", "another entry", "another ledger", "unreadable"],
)
async def test_a_long_poll_is_followed_by_a_read_of_the_lac(
    transport: ApacheTransport,
    bookie: ScriptedApacheBookie,
    code: int,
    content: dict[str, object],
    piggybacked: EntryResult | None,
) -> None:
    call = asyncio.create_task(transport.ask(BOOKIE, WaitLac(LEDGER, EntryId(6), 1.5), DEADLINE_S))
    poll = await bookie.next(pb.READ_ENTRY)
    asked = poll.request.readRequest
    assert (asked.entryId, asked.previousLAC, asked.timeOut) == (-1, 6, 1500)
    assert asked.flag == pb.ReadRequest.ENTRY_PIGGYBACK
    poll.answer(code, **content)
    (await bookie.next(pb.READ_LAC)).answer(lacBody=EXPLICIT, lastEntryBody=entry(9, lac=8))
    last = EntryResult(EntryId(9), Status.OK, entry(9, lac=8))
    assert await call == LacReply(Status.OK, EXPLICIT, last, piggybacked)


@pytest.mark.parametrize(
    ("wait_s", "asked_ms"), [(0.0, None), (-1.0, None), (0.25, 250), (float("inf"), 3_600_000), (1e300, 3_600_000)]
)
async def test_long_waits_are_bounded_and_a_wait_of_zero_sends_no_timeout(
    transport: ApacheTransport, bookie: ScriptedApacheBookie, wait_s: float, asked_ms: int | None
) -> None:
    call = asyncio.create_task(transport.ask(BOOKIE, WaitLac(LEDGER, NO_ENTRY, wait_s), DEADLINE_S))
    asked = (await bookie.next(pb.READ_ENTRY)).request.readRequest
    assert (asked.timeOut if asked.HasField("timeOut") else None) == asked_ms
    call.cancel()


async def test_a_long_poll_for_an_unknown_ledger_reports_it_as_unknown(
    transport: ApacheTransport, bookie: ScriptedApacheBookie
) -> None:
    call = asyncio.create_task(transport.ask(BOOKIE, WaitLac(LEDGER, NO_ENTRY, 1.0), DEADLINE_S))
    (await bookie.next(pb.READ_ENTRY)).answer(pb.ENOLEDGER)
    (await bookie.next(pb.READ_LAC)).answer(pb.ENOENTRY)
    (await bookie.next(pb.READ_ENTRY)).answer(pb.ENOLEDGER)
    assert await call == LacReply(Status.NO_LEDGER)


async def test_an_explicit_lac_is_sent_with_its_number(
    transport: ApacheTransport, bookie: ScriptedApacheBookie
) -> None:
    call = asyncio.create_task(transport.ask(BOOKIE, WriteLac(LEDGER, KEY, EXPLICIT), DEADLINE_S))
    received = await bookie.next(pb.WRITE_LAC)
    asked = received.request.writeLacRequest
    assert (asked.ledgerId, asked.lac, asked.masterKey, asked.body) == (LEDGER, 5, KEY, EXPLICIT)
    received.answer()
    assert await call == AddReply(Status.OK)


async def test_a_force_returns_the_result_of_the_bookie(
    transport: ApacheTransport, bookie: ScriptedApacheBookie
) -> None:
    for code, status in ((pb.EOK, Status.OK), (pb.EIO, Status.IO_ERROR)):
        call = asyncio.create_task(transport.force(BOOKIE, LEDGER, DEADLINE_S))
        (await bookie.next(pb.FORCE_LEDGER)).answer(code)
        assert (await call).status is status


@pytest.mark.parametrize(
    ("code", "data", "status"),
    [
        (pb.EOK, EntryRuns(((0, 3), (7, 7))).encode(), Status.OK),
        (pb.EOK, b"short", Status.IO_ERROR),
        (pb.EOK, b"", Status.IO_ERROR),
        (pb.ENOLEDGER, b"", Status.NO_LEDGER),
        (pb.EIO, b"", Status.IO_ERROR),
    ],
)
async def test_an_incomplete_list_is_an_error(
    transport: ApacheTransport, bookie: ScriptedApacheBookie, code: int, data: bytes, status: Status
) -> None:
    call = asyncio.create_task(transport.ask(BOOKIE, ListEntries(LEDGER), DEADLINE_S))
    (await bookie.next(pb.GET_LIST_OF_ENTRIES_OF_LEDGER)).answer(code, availabilityOfEntriesOfLedger=data)
    reply = await call
    assert reply.status is status
    assert list(reply.entries) == ([0, 1, 2, 3, 7] if status is Status.OK else [])


async def test_the_info_of_a_bookie_contains_only_its_disk_space(
    transport: ApacheTransport, bookie: ScriptedApacheBookie
) -> None:
    call = asyncio.create_task(transport.ask(BOOKIE, Info(), DEADLINE_S))
    received = await bookie.next(pb.GET_BOOKIE_INFO)
    assert received.request.getBookieInfoRequest.requested == 3
    received.answer(totalDiskCapacity=100, freeDiskSpace=40)
    assert await call == InfoReply(Status.OK, BookieInfo("", "", False, 100, 40, None))


@pytest.mark.parametrize("entry_ids", [[], [-1], [1, 1], [2, 1], [1 << 63], list(range(READ_ENTRIES_MAX + 1))])
async def test_invalid_reads_are_not_sent(
    transport: ApacheTransport, bookie: ScriptedApacheBookie, entry_ids: list[int]
) -> None:
    for fence_key in (None, KEY):
        assert (await reading(transport, *entry_ids, fence_key=fence_key)).status is Status.BAD_REQUEST
    assert (await transport.ask(BOOKIE, Fence(LedgerId(-1), KEY), DEADLINE_S)).status is Status.BAD_REQUEST
    assert (await transport.ask(BOOKIE, WaitLac(LEDGER, EntryId(-2), 0.0), DEADLINE_S)).status is Status.BAD_REQUEST
    assert bookie.clients == []
