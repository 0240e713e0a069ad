"""Lists from Apache's bookies that answer, do not answer, or answer slowly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from bookie.model.availability import EntryRuns
from bookie.model.ids import LedgerId
from bookie.wire.apache import protocol_pb2 as pb
from bookie.wire.apache.transport import ApacheTransport
from bookie.wire.port import ListReply, Status
from bookie.wire.requests import ListEntries, ReadLast
from tests.contract.scripted_apache_bookie import (
    AFTER_AN_ANSWER_S,
    BOOKIE,
    DEADLINE_S,
    LEDGER,
    SOON_S,
    Directory,
    ScriptedApacheBookie,
    connect,
    entry,
    scripted_bookie,
)

LISTED = EntryRuns(((0, 3), (7, 7)))


@pytest.fixture
async def bookie() -> AsyncIterator[ScriptedApacheBookie]:
    async with scripted_bookie() as bookie:
        yield bookie


@pytest.fixture
async def transport(bookie: ScriptedApacheBookie) -> AsyncIterator[ApacheTransport]:
    transport = ApacheTransport(Directory(bookie.port), list_silence_s=0.0)
    yield transport
    await transport.close()


def listing(
    transport: ApacheTransport, timeout_s: float = DEADLINE_S, ledger_id: int = LEDGER
) -> asyncio.Task[ListReply]:
    return asyncio.create_task(transport.ask(BOOKIE, ListEntries(LedgerId(ledger_id)), timeout_s))


async def listed(transport: ApacheTransport, bookie: ScriptedApacheBookie) -> None:
    """Request a list and receive it."""
    call = listing(transport)
    (await bookie.next(pb.GET_LIST_OF_ENTRIES_OF_LEDGER)).answer(availabilityOfEntriesOfLedger=LISTED.encode())
    assert await call == ListReply(Status.OK, LISTED)


async def unlisted(transport: ApacheTransport, bookie: ScriptedApacheBookie) -> None:
    """Request a list from a bookie that does not support lists."""
    call = listing(transport)
    await bookie.next(pb.GET_LIST_OF_ENTRIES_OF_LEDGER)
    (await bookie.next(pb.READ_ENTRY)).answer(body=entry(7))
    assert (await call).status is Status.UNSUPPORTED


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (pb.EOK, Status.UNSUPPORTED),
        (pb.EIO, Status.UNSUPPORTED),
        (pb.ENOENTRY, Status.NO_ENTRY),
        (pb.ENOLEDGER, Status.NO_LEDGER),
        (pb.EUNKNOWNLEDGERSTATE, Status.LIMBO),
        (pb.ETOOMANYREQUESTS, Status.TOO_MANY_REQUESTS),
    ],
)
async def test_a_bookie_that_answers_everything_but_lists_is_detected_by_its_last_entry(
    transport: ApacheTransport, bookie: ScriptedApacheBookie, code: int, status: Status
) -> None:
    for _ in range(2):
        call = listing(transport)
        first = await bookie.requests.get()
        read = first if first.operation == pb.READ_ENTRY else await bookie.next(pb.READ_ENTRY)
        asked = read.request.readRequest
        assert (asked.ledgerId, asked.entryId, asked.HasField("flag")) == (LEDGER, -1, False)
        if code == pb.EOK:
            read.answer(body=entry(7))
        else:
            read.answer(code)
        reply = await call
        assert (reply.status, reply.entries) == (status, EntryRuns(()))


async def test_a_bookie_without_support_for_lists_is_not_sent_a_list_request_again(
    transport: ApacheTransport, bookie: ScriptedApacheBookie
) -> None:
    await unlisted(transport, bookie)
    for _ in range(2):
        call = listing(transport)
        (await bookie.next(pb.READ_ENTRY)).answer(body=entry(7))
        assert (await call).status is Status.UNSUPPORTED


async def test_a_busy_bookie_is_not_remembered_as_one_without_lists(
    transport: ApacheTransport, bookie: ScriptedApacheBookie
) -> None:
    call = listing(transport)
    await bookie.next(pb.GET_LIST_OF_ENTRIES_OF_LEDGER)
    (await bookie.next(pb.READ_ENTRY)).answer(pb.ETOOMANYREQUESTS)
    assert (await call).status is Status.TOO_MANY_REQUESTS
    await listed(transport, bookie)


async def test_a_new_connection_sends_a_list_request_again(
    transport: ApacheTransport, bookie: ScriptedApacheBookie
) -> None:
    await unlisted(transport, bookie)
    call = listing(transport)
    await bookie.next(pb.READ_ENTRY)
    bookie.clients[0].disconnect()
    assert (await call).status is Status.UNREACHABLE
    await listed(transport, bookie)


async def test_a_list_that_arrives_before_the_last_entry_is_used(
    transport: ApacheTransport, bookie: ScriptedApacheBookie
) -> None:
    call = listing(transport)
    asked = await bookie.next(pb.GET_LIST_OF_ENTRIES_OF_LEDGER)
    await bookie.next(pb.READ_ENTRY)
    asked.answer(availabilityOfEntriesOfLedger=LISTED.encode())
    assert await call == ListReply(Status.OK, LISTED)


async def test_a_late_list_shows_that_the_bookie_supports_lists(
    transport: ApacheTransport, bookie: ScriptedApacheBookie
) -> None:
    call = listing(transport)
    asked = await bookie.next(pb.GET_LIST_OF_ENTRIES_OF_LEDGER)
    (await bookie.next(pb.READ_ENTRY)).answer(body=entry(7))
    assert (await call).status is Status.UNSUPPORTED
    asked.answer(availabilityOfEntriesOfLedger=LISTED.encode())
    read = asyncio.create_task(transport.ask(BOOKIE, ReadLast(LEDGER), DEADLINE_S))
    (await bookie.next(pb.READ_ENTRY)).answer(body=entry(7))
    assert (await read).status is Status.OK
    await listed(transport, bookie)


async def test_a_bookie_that_answers_nothing_is_reported_as_a_timeout(
    transport: ApacheTransport, bookie: ScriptedApacheBookie
) -> None:
    await connect(transport, bookie)
    assert (await listing(transport, SOON_S)).status is Status.TIMEOUT
    await bookie.next(pb.GET_LIST_OF_ENTRIES_OF_LEDGER)
    await bookie.next(pb.READ_ENTRY)
    call = listing(transport, AFTER_AN_ANSWER_S)
    await bookie.next(pb.GET_LIST_OF_ENTRIES_OF_LEDGER)
    assert (await call).status is Status.TIMEOUT


async def test_an_answer_for_another_ledger_is_not_evidence(
    transport: ApacheTransport, bookie: ScriptedApacheBookie
) -> None:
    call = listing(transport, AFTER_AN_ANSWER_S)
    await bookie.next(pb.GET_LIST_OF_ENTRIES_OF_LEDGER)
    (await bookie.next(pb.READ_ENTRY)).answer(body=entry(7), ledgerId=LEDGER + 1)
    assert (await call).status is Status.TIMEOUT
