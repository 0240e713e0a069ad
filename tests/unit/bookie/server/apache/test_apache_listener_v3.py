"""Version 3 of Apache's protocol, operation by operation (docs/formats.md#operations), on a bookie in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from bookie.model.availability import EntryRuns
from bookie.model.packet import pack_lac
from bookie.server.apache.dialect_v3 import DialectV3
from bookie.server.apache.requests import Add, ImmediateAnswer, Read, StartTls
from bookie.storage.disks.memory import Operation
from bookie.storage.port import DiskError
from bookie.wire.apache import protocol_pb2 as pb
from bookie.wire.apache.framing import FrameSplitter, MalformedFrameError
from bookie.wire.port import READ_BYTES_MAX
from tests.worlds.apache_listener import (
    DIGEST,
    KEY,
    LEDGER,
    OTHER_KEY,
    TXN,
    ProtocolWorld,
    add,
    entry,
    long_poll,
    read,
    request,
)


@pytest.fixture
async def world() -> AsyncIterator[ProtocolWorld]:
    world = await ProtocolWorld.create()
    yield world
    await world.close()


async def test_an_added_entry_is_read_back_as_it_was_sent(world: ProtocolWorld) -> None:
    added = await world.ask(add(entry(0), echo=0))
    assert (added.status, added.addResponse.ledgerId, added.addResponse.entryId) == (pb.EOK, LEDGER, 0)
    found = await world.ask(read(0))
    assert (found.status, found.readResponse.entryId, found.readResponse.body) == (pb.EOK, 0, entry(0))


async def test_the_documented_fencing_read_fences_an_unknown_ledger(world: ProtocolWorld) -> None:
    """The vector of docs/formats.md#version-3."""
    frame = bytes.fromhex(
        "0a06080310011801a20626080710ffffffffffffffffff011a14850bf1071c5e3d8c24235676f8816ae0cbe2f14fa00601"
    )
    response = pb.Response.FromString(await world.answered(world.v3.decode(frame)))
    assert (response.header.txnId, response.status) == (1, pb.ENOENTRY)
    assert (response.readResponse.ledgerId, response.readResponse.entryId) == (7, -1)
    assert await world.status(add(entry(0))) == pb.EFENCED
    assert await world.status(read(0)) == pb.ENOENTRY


async def test_the_ids_of_an_added_entry_are_those_in_its_body(world: ProtocolWorld) -> None:
    added = await world.ask(add(entry(3, ledger=99), echo=55))
    assert (added.status, added.addResponse.ledgerId, added.addResponse.entryId) == (pb.EOK, LEDGER, 55)
    assert await world.status(read(3, ledger=99)) == pb.EOK
    assert await world.status(read(55)) == pb.ENOLEDGER


async def test_adds_need_the_key_of_the_first_add(world: ProtocolWorld) -> None:
    assert await world.status(add(entry(0))) == pb.EOK
    assert await world.status(add(entry(1), OTHER_KEY)) == pb.EUA
    assert await world.status(read(1)) == pb.ENOENTRY


async def test_a_fenced_ledger_accepts_only_recovery_adds(world: ProtocolWorld) -> None:
    await world.ask(add(entry(0)))
    fenced = await world.ask(read(-1, fence_key=KEY))
    assert (fenced.status, fenced.readResponse.body) == (pb.EOK, entry(0))
    assert not fenced.readResponse.HasField("maxLAC")
    assert await world.status(add(entry(1))) == pb.EFENCED
    assert await world.status(add(entry(1), is_recovery=True, flags=1)) == pb.EOK


async def test_fencing_needs_the_key(world: ProtocolWorld) -> None:
    await world.ask(add(entry(0)))
    without = read(0)
    without.readRequest.flag = pb.ReadRequest.FENCE_LEDGER
    assert await world.status(without) == pb.EUA
    assert await world.status(read(0, fence_key=OTHER_KEY)) == pb.EUA
    assert await world.status(read(-1, fence_key=OTHER_KEY)) == pb.EUA
    assert await world.status(add(entry(1))) == pb.EOK


async def test_a_fencing_read_of_one_entry_fences_and_returns_no_lac(world: ProtocolWorld) -> None:
    await world.ask(add(entry(1, lac=0)))
    found = await world.ask(read(1, fence_key=KEY))
    assert (found.status, found.readResponse.body) == (pb.EOK, entry(1, lac=0))
    assert not found.readResponse.HasField("maxLAC")
    assert await world.status(read(0, fence_key=KEY)) == pb.ENOENTRY
    assert await world.status(add(entry(2))) == pb.EFENCED


async def test_a_fence_that_is_not_durable_is_answered_with_an_error(world: ProtocolWorld) -> None:
    async def fail(operation: Operation, path: str) -> None:
        if operation is Operation.INDEX_READ:
            raise DiskError("index gone")

    world.index.before = fail
    assert await world.status(read(-1, fence_key=KEY)) == pb.EIO


async def test_reading_the_last_entry_echoes_minus_one(world: ProtocolWorld) -> None:
    await world.ask(add(entry(4)))
    found = await world.ask(read(-1))
    assert (found.readResponse.entryId, found.readResponse.body) == (-1, entry(4))


async def test_absent_ledgers_and_entries_have_their_own_codes(world: ProtocolWorld) -> None:
    assert await world.status(read(0)) == pb.ENOLEDGER
    assert await world.status(read(-1)) == pb.ENOLEDGER
    await world.ask(add(entry(0)))
    missing = await world.ask(read(9))
    assert missing.status == pb.ENOENTRY
    assert not missing.readResponse.HasField("body")
    assert not missing.readResponse.HasField("maxLAC")


async def test_plain_reads_return_the_greatest_lac_seen(world: ProtocolWorld) -> None:
    await world.ask(add(entry(0)))
    assert (await world.ask(read(0))).readResponse.maxLAC == -1
    await world.ask(add(entry(5, lac=4)))
    assert (await world.ask(read(0))).readResponse.maxLAC == 4
    explicit = request(pb.WRITE_LAC)
    part = explicit.writeLacRequest
    part.ledgerId, part.lac, part.masterKey, part.body = LEDGER, 5, KEY, pack_lac(DIGEST, LEDGER, 5)
    assert await world.status(explicit) == pb.EOK
    assert (await world.ask(read(0))).readResponse.maxLAC == 5


async def test_an_impossible_header_proves_no_lac(world: ProtocolWorld) -> None:
    await world.ask(add(entry(0, lac=700)))
    assert (await world.ask(read(0))).readResponse.maxLAC == -1


async def test_limbo_is_never_absent(world: ProtocolWorld) -> None:
    await world.ask(add(entry(0)))
    await world.storage.set_limbo([LEDGER])
    assert await world.status(add(entry(2))) == pb.EUNKNOWNLEDGERSTATE  # EFENCED would end the writer
    assert await world.status(add(entry(2), is_recovery=True, flags=1)) == pb.EOK
    for message in (read(1), read(-1), read(1, fence_key=KEY), read(-1, fence_key=KEY)):
        assert await world.status(message) == pb.EUNKNOWNLEDGERSTATE
    assert await world.status(read(0)) == pb.EOK
    lac, listed = request(pb.READ_LAC), request(pb.GET_LIST_OF_ENTRIES_OF_LEDGER)
    lac.readLacRequest.ledgerId = listed.getListOfEntriesOfLedgerRequest.ledgerId = LEDGER
    assert await world.status(lac) == pb.EUNKNOWNLEDGERSTATE
    answer = await world.ask(listed)
    assert answer.status == pb.EUNKNOWNLEDGERSTATE
    assert not answer.getListOfEntriesOfLedgerResponse.HasField("availabilityOfEntriesOfLedger")
    assert await world.status(long_poll(0, 0)) == pb.EUNKNOWNLEDGERSTATE


async def test_a_broken_disk_is_an_io_error(world: ProtocolWorld) -> None:
    async def fail(operation: Operation, path: str) -> None:
        raise DiskError("gone")

    world.index.before = fail
    for message in (read(0), read(-1), add(entry(0)), read(0, fence_key=KEY)):
        assert await world.status(message) == pb.EIO


async def test_a_read_only_bookie_accepts_only_recovery_adds(world: ProtocolWorld) -> None:
    world.service.is_read_only = True
    assert await world.status(add(entry(0))) == pb.EREADONLY
    assert await world.status(add(entry(0), is_recovery=True)) == pb.EOK


async def test_a_bookie_that_stops_answers_with_an_io_error(world: ProtocolWorld) -> None:
    world.service.refuse_everything()
    for message in (add(entry(0)), read(0), read(-1, fence_key=KEY), request_info(3), long_poll(-1, 1000)):
        assert await world.status(message) == pb.EIO


async def test_an_entry_without_a_header_is_a_bad_request(world: ProtocolWorld) -> None:
    for body in (b"", b"short", entry(0)[:31]):
        assert await world.status(add(body)) == pb.EBADREQ
    assert await world.status(read(-2)) == pb.EBADREQ


async def test_the_long_poll_returns_the_awaited_entry(world: ProtocolWorld) -> None:
    await world.ask(add(entry(0)))
    poll = asyncio.create_task(world.ask(long_poll(-1, 20_000)))
    await asyncio.sleep(0)
    await world.ask(add(entry(1, lac=0)))
    found = (await poll).readResponse
    assert (found.maxLAC, found.entryId, found.body) == (0, 0, entry(0))
    assert found.lacUpdateTimestamp > 0


async def test_the_long_poll_returns_the_current_lac_at_its_deadline(world: ProtocolWorld) -> None:
    assert await world.status(long_poll(0, 1)) == pb.ENOLEDGER
    await world.ask(add(entry(1, lac=0)))
    for wait_ms in (None, 1):
        answer = await world.ask(long_poll(0, wait_ms))
        assert answer.status == pb.EOK
        assert (answer.readResponse.maxLAC, answer.readResponse.HasField("body")) == (0, False)


async def test_a_fence_ends_the_long_poll(world: ProtocolWorld) -> None:
    await world.ask(add(entry(0)))
    polls = [asyncio.create_task(world.ask(long_poll(5, 20_000))) for _ in range(2)]
    while world.service._lacs.waiter_count < len(polls):  # noqa: ASYNC110 (a place among those who wait sets no event)
        await asyncio.sleep(0)
    await world.ask(read(-1, fence_key=KEY))
    answers = await asyncio.gather(*polls)
    assert [(answer.status, answer.readResponse.maxLAC) for answer in answers] == [(pb.EOK, -1)] * 2


async def test_the_long_poll_succeeds_even_if_another_bookie_has_the_entry(world: ProtocolWorld) -> None:
    await world.ask(add(entry(5, lac=4)))
    answer = await world.ask(long_poll(2, 1000))
    assert (answer.status, answer.readResponse.maxLAC) == (pb.EOK, 4)
    assert (answer.readResponse.entryId, answer.readResponse.HasField("body")) == (-1, False)


async def test_a_long_poll_that_awaits_no_lac_reads_its_entry(world: ProtocolWorld) -> None:
    await world.ask(add(entry(1, lac=0)))
    answer = await world.ask(long_poll(-1, 1000, entry_id=1, wants_entry=False))
    assert (answer.readResponse.entryId, answer.readResponse.body) == (1, entry(1, lac=0))


async def test_an_entry_is_piggybacked_only_on_a_poll_for_the_last_entry(world: ProtocolWorld) -> None:
    await world.ask(add(entry(0)))
    assert await world.status(long_poll(-1, 1, entry_id=0)) == pb.EBADREQ
    plain = read(-1)
    plain.readRequest.flag = pb.ReadRequest.ENTRY_PIGGYBACK
    assert await world.status(plain) == pb.EBADREQ
    assert await world.status(long_poll(-5, 1)) == pb.EBADREQ


async def test_read_lac_returns_the_last_entry_and_the_explicit_lac(world: ProtocolWorld) -> None:
    message = request(pb.READ_LAC)
    message.readLacRequest.ledgerId = LEDGER
    assert await world.status(message) == pb.ENOENTRY
    await world.ask(read(-1, fence_key=KEY))
    assert await world.status(message) == pb.ENOENTRY
    write = request(pb.WRITE_LAC)
    part = write.writeLacRequest
    part.ledgerId, part.lac, part.masterKey, part.body = LEDGER, 3, KEY, pack_lac(DIGEST, LEDGER, 3)
    assert await world.status(write) == pb.EOK
    explicit_alone = await world.ask(message)
    assert (explicit_alone.status, explicit_alone.readLacResponse.lacBody) == (pb.EIO, part.body)
    await world.ask(add(entry(4), is_recovery=True))
    both = await world.ask(message)
    assert (both.status, both.readLacResponse.lacBody) == (pb.EOK, part.body)
    assert both.readLacResponse.lastEntryBody == entry(4)


async def test_write_lac_needs_the_key_and_a_packet(world: ProtocolWorld) -> None:
    await world.ask(add(entry(0)))
    write = request(pb.WRITE_LAC)
    part = write.writeLacRequest
    part.ledgerId, part.lac, part.masterKey, part.body = LEDGER, 3, OTHER_KEY, pack_lac(DIGEST, LEDGER, 3)
    assert await world.status(write) == pb.EUA
    part.masterKey, part.body = KEY, b"no packet"
    assert await world.status(write) == pb.EBADREQ


async def test_force_is_answered_at_once_even_for_unknown_ledgers(world: ProtocolWorld) -> None:
    message = request(pb.FORCE_LEDGER)
    message.forceLedgerRequest.ledgerId = 12345
    answer = await world.ask(message)
    assert (answer.status, answer.forceLedgerResponse.ledgerId) == (pb.EOK, 12345)


def request_info(wanted: int) -> pb.Request:
    message = request(pb.GET_BOOKIE_INFO)
    message.getBookieInfoRequest.requested = wanted
    return message


@pytest.mark.parametrize(("wanted", "total", "free"), [(0, False, False), (1, True, False), (2, False, True)])
async def test_bookie_info_returns_the_requested_fields(
    world: ProtocolWorld, wanted: int, total: bool, free: bool
) -> None:
    answer = (await world.ask(request_info(wanted))).getBookieInfoResponse
    assert (answer.HasField("totalDiskCapacity"), answer.HasField("freeDiskSpace")) == (total, free)


async def test_the_entry_list_is_encoded_as_by_apache(world: ProtocolWorld) -> None:
    message = request(pb.GET_LIST_OF_ENTRIES_OF_LEDGER)
    message.getListOfEntriesOfLedgerRequest.ledgerId = LEDGER
    assert await world.status(message) == pb.ENOLEDGER
    for entry_id in (0, 1, 5):
        await world.ask(add(entry(entry_id)))
    listed = (await world.ask(message)).getListOfEntriesOfLedgerResponse.availabilityOfEntriesOfLedger
    assert EntryRuns.decode(listed) == EntryRuns(((0, 1), (5, 5)))


async def test_no_login_is_required(world: ProtocolWorld) -> None:
    message = request(pb.AUTH)
    message.authRequest.authPluginName, message.authRequest.payload = "sasl", b"token"
    answer = await world.ask(message)
    assert (answer.status, answer.authResponse.authPluginName) == (pb.EOK, "AuthDisabledPlugin")
    assert answer.authResponse.payload == b""


async def test_tls_is_refused_if_it_is_not_configured(world: ProtocolWorld) -> None:
    assert await world.status(request(pb.START_TLS)) == pb.EBADREQ


async def test_other_versions_are_refused_in_the_response_of_the_operation(world: ProtocolWorld) -> None:
    message = read(4)
    message.header.version = pb.VERSION_TWO
    answer = await world.ask(message)
    assert (answer.status, answer.readResponse.entryId) == (pb.EBADVERSION, 4)


async def test_an_unknown_operation_is_refused_by_its_number(world: ProtocolWorld) -> None:
    unknown = bytes.fromhex("0a06080310041807")  # RANGE_ADD_ENTRY, txn 7
    answer = await world.answered(world.v3.decode(unknown))
    assert sorted(answer[:8]) == sorted(unknown)  # the received header, with its fields in another order
    response = pb.Response.FromString(answer)
    assert (response.header.txnId, response.status) == (7, pb.EBADREQ)


async def test_an_operation_without_its_message_is_a_bad_request(world: ProtocolWorld) -> None:
    for operation in (pb.READ_ENTRY, pb.ADD_ENTRY, pb.WRITE_LAC, pb.READ_LAC, pb.FORCE_LEDGER):
        answer = await world.ask(request(operation))
        assert (answer.status, len(answer.ListFields())) == (pb.EBADREQ, 2)


def test_a_header_that_would_make_a_long_answer_is_malformed(world: ProtocolWorld) -> None:
    unknown_field = b"\xa2\x06\x40" + bytes(64)
    header = pb.BKPacketHeader(version=pb.VERSION_THREE, operation=pb.READ_ENTRY, txnId=1)
    body = pb.Request(header=pb.BKPacketHeader.FromString(header.SerializeToString() + unknown_field))
    with pytest.raises(MalformedFrameError):
        DialectV3().decode(body.SerializeToString())


@pytest.mark.parametrize("body", ["", "0201000085", "0a020803", "ff", "0a06080310021807aa06020807"])
def test_bytes_that_are_not_a_request_are_malformed(body: str, world: ProtocolWorld) -> None:
    with pytest.raises(MalformedFrameError):
        world.v3.decode(bytes.fromhex(body))


async def test_one_bad_entry_does_not_fail_the_others_of_its_batch(world: ProtocolWorld) -> None:
    packets = [entry(0), entry(1)[:20], entry(2)]
    adds = [world.v3.decode(add(packet, echo=number).SerializeToString()) for number, packet in enumerate(packets)]
    answers = await world.added([item for item in adds if isinstance(item, Add)])
    responses = [pb.Response.FromString(answer) for answer in answers]
    assert [response.status for response in responses] == [pb.EOK, pb.EBADREQ, pb.EOK]
    assert [response.addResponse.entryId for response in responses] == [0, 1, 2]


async def test_reads_in_any_order_and_number_are_each_answered(world: ProtocolWorld) -> None:
    for entry_id in (0, 1, 2):
        await world.ask(add(entry(entry_id)))
    wanted = (2, 0, 9, 2, 1)
    reads = [world.v3.decode(read(entry_id).SerializeToString()) for entry_id in wanted]
    answers, left = await world.answering.reads([item for item in reads if isinstance(item, Read)])
    assert left == []
    statuses: dict[int, list[int]] = {}
    for answer in FrameSplitter().feed(b"".join(answers)):
        response = pb.Response.FromString(answer)
        statuses.setdefault(response.readResponse.entryId, []).append(response.status)
    assert statuses == {2: [pb.EOK, pb.EOK], 0: [pb.EOK], 1: [pb.EOK], 9: [pb.ENOENTRY]}


@pytest.mark.parametrize("entry_id", [0, -1])
async def test_repeated_reads_of_one_entry_are_answered_within_the_byte_limit_of_a_read(
    world: ProtocolWorld, entry_id: int
) -> None:
    packet = entry(0, size=1 << 20)
    assert await world.status(add(packet)) == pb.EOK
    decoded = [world.v3.decode(read(entry_id).SerializeToString()) for _ in range(50)]
    left = [item for item in decoded if isinstance(item, Read)]
    sizes: list[int] = []
    while left:
        answers, left = await world.answering.reads(left)
        sizes.append(sum(map(len, answers)))
        bodies = FrameSplitter().feed(b"".join(answers))
        assert {pb.Response.FromString(body).readResponse.body for body in bodies} == {packet}
    assert sum(sizes) > 50 * len(packet)
    assert max(sizes) < READ_BYTES_MAX + 2 * len(packet)


async def test_a_connection_that_requires_tls_serves_only_login() -> None:
    v3 = DialectV3(may_serve=False)
    assert isinstance(v3.decode(request(pb.START_TLS).SerializeToString()), StartTls)
    for message in (read(0), add(entry(0)), request(pb.GET_BOOKIE_INFO)):
        refused = v3.decode(message.SerializeToString())
        assert isinstance(refused, ImmediateAnswer)
        response = pb.Response.FromString(refused.answer)
        assert (response.status, response.header.txnId, len(response.ListFields())) == (pb.EUA, TXN, 2)
