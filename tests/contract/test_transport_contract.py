"""One suite for the transport port: in memory, and over gRPC and Apache's protocol on the loopback interface."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from bookie.model.availability import EntryRuns
from bookie.model.ids import EntryId, LedgerId
from bookie.model.packet import ENTRY_PAYLOAD_MAX, PACKET_BYTES_MAX
from bookie.storage.disks.memory import yield_control
from bookie.wire.port import (
    BATCH_BYTES_MAX,
    BATCH_ENTRIES_MAX,
    READ_BYTES_MAX,
    READ_ENTRIES_MAX,
    AddBatch,
    AddReply,
    BookieInfo,
    EntryResult,
    FenceReply,
    InfoReply,
    ReadReply,
    Status,
)
from bookie.wire.requests import Fence, Info, ListEntries, Read, ReadLast, WriteLac
from bookie.wire.resolver import APACHE_PROTOCOL, GRPC_PROTOCOL, BookieAddress
from tests.contract.transport_world import (
    BOOKIE,
    DEADLINE_S,
    INCARNATION,
    KEY,
    LEDGER,
    SOON_S,
    TransportWorld,
    a_world,
    broken_disk,
    entry,
    lac,
    ok,
    outcome,
    reported,
)
from tests.worlds.requests import one_of_each


@pytest.fixture(params=["memory", "grpc", "apache", "apache in bulk"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[TransportWorld]:
    async with a_world(request.param) as world:
        yield world


@pytest.fixture(params=["memory", "grpc"])
async def naming_world(request: pytest.FixtureRequest) -> AsyncIterator[TransportWorld]:
    """A world whose requests name their target incarnation; those of Apache's protocol do not."""
    async with a_world(request.param) as world:
        yield world


async def test_what_was_added_is_read_back_byte_for_byte(world: TransportWorld) -> None:
    assert await world.add(entry(0), entry(1), entry(5)) == AddReply(Status.OK)
    reply = await world.read(0, 1, 5)
    assert (reply.status, list(reply.results)) == (Status.OK, ok(0, 1, 5))


async def test_absent_corrupt_and_unknown_have_different_statuses(world: TransportWorld) -> None:
    assert [result.status for result in (await world.read(0)).results] == [Status.NO_LEDGER]
    await world.add(entry(0), entry(2))
    await world.storage.checkpoint()
    [log] = world.ledgers.paths()
    world.ledgers.flip_bit(log, 8 * world.ledgers.content(log).index(entry(2)) + 300)
    reply = await world.read(0, 1, 2)
    assert [result.status for result in reply.results] == [
        Status.OK,
        Status.NO_ENTRY,
        reported(world.kind, Status.CORRUPT),
    ]
    await world.storage.set_limbo([LEDGER])
    assert [result.status for result in (await world.read(0, 1)).results] == [Status.OK, Status.LIMBO]
    assert (await world.add(entry(1))).status is Status.LIMBO


async def test_reads_cover_a_prefix_within_the_bound_and_at_least_one_entry(world: TransportWorld) -> None:
    payload = bytes(ENTRY_PAYLOAD_MAX)
    for entry_id in range(10):
        assert (await world.add(entry(entry_id, payload))).status is Status.OK
    reply = await world.read(*range(10))
    assert reply.status is Status.OK
    assert [result.entry_id for result in reply.results] == list(range(len(reply.results)))
    assert all(result.packet == entry(result.entry_id, payload) for result in reply.results)
    assert 1 <= len(reply.results) < 10
    assert sum(len(result.packet) for result in reply.results) <= READ_BYTES_MAX + len(payload) + 100


async def test_the_largest_entries_of_any_writer_can_be_added_and_read(world: TransportWorld) -> None:
    """Apache's writers write larger entries than ours; a batch may hold such an entry after a full megabyte."""
    largest = entry(1, bytes(PACKET_BYTES_MAX - len(entry(1, b""))))
    megabyte = entry(0, bytes(ENTRY_PAYLOAD_MAX - 100))
    assert await world.add(megabyte, largest) == AddReply(Status.OK)
    await world.storage.checkpoint()
    reply = await world.read(0, 1)
    assert [result.packet for result in reply.results] == [megabyte, largest]
    assert (await world.add(entry(2, bytes(PACKET_BYTES_MAX)))).status is Status.BAD_REQUEST
    for size in (9_000_000, 15_000_000):  # the second size exceeds the limit of a gRPC message
        refused = await world.add(entry(2, bytes(size)))
        assert (refused.status, str(size)[:3] in refused.detail) == (Status.BAD_REQUEST, True)


async def test_the_last_entry_is_returned_with_its_true_id(world: TransportWorld) -> None:
    assert [r.status for r in (await world.transport.ask(BOOKIE, ReadLast(LEDGER), DEADLINE_S)).results] == [
        Status.NO_LEDGER
    ]
    await world.add(entry(3), entry(9))
    reply = await world.transport.ask(BOOKIE, ReadLast(LEDGER), DEADLINE_S)
    assert (reply.status, list(reply.results)) == (Status.OK, ok(9))


async def test_a_fence_returns_the_last_entry_and_stops_all_adds_but_recovery(world: TransportWorld) -> None:
    assert await world.transport.ask(BOOKIE, Fence(LedgerId(8), KEY), DEADLINE_S) == FenceReply(Status.OK, None)
    await world.add(entry(4))
    assert await world.transport.ask(BOOKIE, Fence(LEDGER, KEY), DEADLINE_S) == FenceReply(Status.OK, ok(4)[0])
    assert (await world.add(entry(5))).status is Status.FENCED
    assert (await world.add(entry(5), is_recovery=True)).status is Status.OK


async def test_a_wrong_master_key_is_unauthorized(world: TransportWorld) -> None:
    await world.add(entry(0))
    assert (await world.add(entry(1), key=b"other")).status is Status.UNAUTHORIZED
    assert (await world.transport.ask(BOOKIE, Fence(LEDGER, b"other"), DEADLINE_S)).status is Status.UNAUTHORIZED


async def test_a_fencing_read_fences_and_reads(world: TransportWorld) -> None:
    await world.add(entry(0), entry(1))
    reply = await world.read(0, 1, 2, fence_key=KEY)
    assert (reply.status, list(reply.results)) == (Status.OK, [*ok(0, 1), EntryResult(EntryId(2), Status.NO_ENTRY)])
    assert (await world.add(entry(2))).status is Status.FENCED
    assert (await world.add(entry(2), is_recovery=True)).status is Status.OK


@pytest.mark.parametrize("key", [KEY, b""])
async def test_a_fencing_read_fences_an_unknown_ledger_with_any_key(world: TransportWorld, key: bytes) -> None:
    reply = await world.read(0, fence_key=key)
    assert (reply.status, [result.status for result in reply.results]) == (Status.OK, [Status.NO_ENTRY])
    assert (await world.add(entry(0), key=key)).status is Status.FENCED


async def test_a_fencing_read_with_a_wrong_key_neither_fences_nor_reads(world: TransportWorld) -> None:
    await world.add(entry(0))
    reply = await world.read(0, fence_key=b"other")
    assert (reply.status, list(reply.results)) == (Status.UNAUTHORIZED, [])
    assert (await world.add(entry(1))).status is Status.OK


async def test_a_fencing_read_is_not_answered_before_the_fence_is_durable(world: TransportWorld) -> None:
    await world.add(entry(0))
    stuck = world.block_journal()
    call = asyncio.create_task(world.read(0, fence_key=KEY))
    await stuck.has_begun.wait()
    assert (await world.read(0)).status is Status.OK  # reads without a fence are answered
    assert not call.done()
    stuck.release()
    assert (await call).status is Status.OK


async def test_a_failed_fence_is_the_only_result_of_a_fencing_read(world: TransportWorld) -> None:
    await world.add(entry(0))
    world.journal.before = broken_disk
    reply = await world.read(0, fence_key=KEY)
    assert (reply.status, list(reply.results)) == (Status.IO_ERROR, [])


async def test_reads_without_a_fence_key_fence_nothing(world: TransportWorld) -> None:
    await world.add(entry(0))
    await world.read(0)
    assert (await world.add(entry(1))).status is Status.OK


async def test_lists_contain_the_entry_ids(world: TransportWorld) -> None:
    assert (await world.transport.ask(BOOKIE, ListEntries(LEDGER), DEADLINE_S)).status is Status.NO_LEDGER
    await world.add(*(entry(entry_id) for entry_id in (0, 1, 2, 7, 9)))
    reply = await world.transport.ask(BOOKIE, ListEntries(LEDGER), DEADLINE_S)
    assert (reply.status, reply.entries) == (Status.OK, EntryRuns(((0, 2), (7, 7), (9, 9))))


async def test_info_describes_the_bookie(world: TransportWorld) -> None:
    await world.add(entry(0))
    world.service.is_read_only = True
    total, free = await world.ledgers.space()
    expected = BookieInfo(INCARNATION, "1.2.3", True, total, free, ledger_count=1)
    if world.kind == "apache":  # Apache's protocol reports only the space of the disks
        expected = BookieInfo("", "", False, total, free, ledger_count=None)
    assert await world.transport.ask(BOOKIE, Info(), DEADLINE_S) == InfoReply(Status.OK, expected)


async def test_read_only_bookies_accept_recovery_adds_fences_and_reads(world: TransportWorld) -> None:
    await world.add(entry(0))
    world.service.is_read_only = True
    assert (await world.add(entry(1))).status is Status.READ_ONLY
    assert (await world.add(entry(1), is_recovery=True)).status is Status.OK
    assert (await world.read(0, 1)).status is Status.OK
    assert (await world.transport.ask(BOOKIE, Fence(LEDGER, KEY), DEADLINE_S)).status is Status.OK
    assert (await world.transport.ask(BOOKIE, WriteLac(LEDGER, KEY, lac(0)), DEADLINE_S)).status is Status.OK
    reply = await world.transport.ask(BOOKIE, Read(LedgerId(8), [EntryId(0)], fence_key=KEY), DEADLINE_S)
    assert [result.status for result in reply.results] == [Status.NO_ENTRY]
    world.service.is_read_only = False
    assert (await world.transport.add(BOOKIE, AddBatch(LEDGER, KEY, [entry(2)], True), DEADLINE_S)).status is Status.OK


async def every_request(world: TransportWorld) -> set[Status]:
    """Send a request of every kind in the protocol, and return the statuses."""
    requests = one_of_each(LEDGER, KEY, lac(5), is_apache=world.kind == "apache")
    replies = await asyncio.gather(
        world.add(entry(0)), *(world.transport.ask(BOOKIE, each, DEADLINE_S) for each in requests)
    )
    return {outcome(reply) if isinstance(reply, ReadReply) else reply.status for reply in replies}


async def test_requests_for_another_incarnation_of_this_bookie_are_refused(naming_world: TransportWorld) -> None:
    world = naming_world
    assert world.directory.address is not None
    address = world.directory.address
    world.directory.address = BookieAddress(address.host, address.port, incarnation="another")
    assert await every_request(world) == {Status.WRONG_INCARNATION}
    assert world.storage.ledger_count == 0
    world.directory.address = BookieAddress(address.host, address.port, incarnation="")
    assert Status.WRONG_INCARNATION not in await every_request(world)


async def test_an_add_pinned_to_an_incarnation_ignores_the_registered_one(naming_world: TransportWorld) -> None:
    world = naming_world
    assert world.directory.address is not None
    address = world.directory.address
    pinned_elsewhere, pinned_here = (
        AddBatch(LEDGER, KEY, [entry(0)], incarnation=uuid) for uuid in ("other", INCARNATION)
    )
    for registered in (INCARNATION, "another", ""):
        world.directory.address = BookieAddress(address.host, address.port, incarnation=registered)
        assert (await world.transport.add(BOOKIE, pinned_elsewhere, DEADLINE_S)).status is Status.WRONG_INCARNATION
    assert world.storage.ledger_count == 0
    for registered in (INCARNATION, "another", ""):
        world.directory.address = BookieAddress(address.host, address.port, incarnation=registered)
        assert (await world.transport.add(BOOKIE, pinned_here, DEADLINE_S)).status is Status.OK


async def test_adds_pinned_to_different_incarnations_do_not_disturb_each_other(world: TransportWorld) -> None:
    pins = [INCARNATION, "other", "", "other", INCARNATION, ""]
    batches = [AddBatch(LEDGER, KEY, [entry(n)], incarnation=pin) for n, pin in enumerate(pins)]
    replies = await asyncio.gather(*(world.transport.add(BOOKIE, batch, DEADLINE_S) for batch in batches))
    refused, taken = Status.WRONG_INCARNATION, Status.OK
    assert [reply.status for reply in replies] == [taken, refused, taken, refused, taken, taken]
    assert list((await world.transport.ask(BOOKIE, ListEntries(LEDGER), DEADLINE_S)).entries) == [0, 2, 4, 5]


async def test_a_bookie_that_shuts_down_refuses_everything(world: TransportWorld) -> None:
    world.service.refuse_everything()
    assert await every_request(world) == {reported(world.kind, Status.SHUTTING_DOWN)}


async def test_a_bookie_that_does_not_listen_is_unreachable(world: TransportWorld) -> None:
    await world.stop_listening()
    assert await every_request(world) == {Status.UNREACHABLE}


async def test_a_bookie_without_an_address_is_unresolved(world: TransportWorld) -> None:
    world.directory.address = None
    assert await every_request(world) == {Status.UNRESOLVED}


async def test_a_bookie_with_only_another_protocol_is_unresolved(world: TransportWorld) -> None:
    protocol = GRPC_PROTOCOL if world.kind == "apache" else APACHE_PROTOCOL
    world.directory.address = BookieAddress("127.0.0.1", 1, protocol)
    assert await every_request(world) == {Status.UNRESOLVED}


async def test_a_disk_failure_is_an_io_error(world: TransportWorld) -> None:
    world.journal.before = broken_disk
    assert (await world.add(entry(0))).status is Status.IO_ERROR
    world.index.before = broken_disk
    assert outcome(await world.read(0)) is Status.IO_ERROR


@pytest.mark.parametrize(
    "batch",
    [
        AddBatch(LEDGER, KEY, []),
        AddBatch(LEDGER, KEY, [b"short"]),
        AddBatch(LEDGER, KEY, [entry(0)] * (BATCH_ENTRIES_MAX + 1)),
        AddBatch(LEDGER, KEY, [entry(0, bytes(BATCH_BYTES_MAX // 2))] * 4),
        AddBatch(LEDGER, KEY, [entry(0, bytes(PACKET_BYTES_MAX))]),
        AddBatch(LedgerId(8), KEY, [entry(0)]),
        AddBatch(LedgerId(-1), KEY, [entry(0)]),
    ],
    ids=["empty", "no header", "too many", "too large", "large entry", "other ledger", "negative ledger"],
)
async def test_invalid_adds_are_refused_and_store_nothing(world: TransportWorld, batch: AddBatch) -> None:
    assert (await world.transport.add(BOOKIE, batch, DEADLINE_S)).status is Status.BAD_REQUEST
    assert world.storage.ledger_count == 0


@pytest.mark.parametrize("entry_ids", [[], [-1], [1, 1], [2, 1], list(range(READ_ENTRIES_MAX + 1))])
async def test_invalid_reads_are_refused_and_fence_nothing(world: TransportWorld, entry_ids: list[int]) -> None:
    assert (await world.read(*entry_ids)).status is Status.BAD_REQUEST
    assert (await world.read(*entry_ids, fence_key=KEY)).status is Status.BAD_REQUEST
    assert world.storage.ledger_count == 0


async def test_the_largest_allowed_batches_are_stored(world: TransportWorld) -> None:
    many = [entry(entry_id) for entry_id in range(BATCH_ENTRIES_MAX)]
    overshooting = [*(entry(entry_id, bytes(1000)) for entry_id in range(1000)), entry(1000, bytes(ENTRY_PAYLOAD_MAX))]
    assert (await world.add(*many)).status is Status.OK
    assert (await world.add(*overshooting)).status is Status.OK


async def test_concurrent_large_batches_do_not_disturb_each_other(world: TransportWorld) -> None:
    payload = bytes(ENTRY_PAYLOAD_MAX)
    batches = [AddBatch(LedgerId(7), KEY, [entry(n, payload), entry(n + 10, bytes(900_000))]) for n in range(3)]
    calls = (world.transport.add(BOOKIE, batch, DEADLINE_S) for batch in batches)
    assert [reply.status for reply in await asyncio.gather(*calls)] == [Status.OK] * 3


async def test_adds_beyond_a_bookies_limit_of_pending_bytes_are_refused(world: TransportWorld) -> None:
    stuck = world.block_journal()
    calls = [asyncio.create_task(world.add(entry(n, bytes(900_000)))) for n in range(12)]
    refused, waiting = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
    assert [call.result().status for call in refused] == [Status.TOO_MANY_REQUESTS]
    stuck.release()
    assert [call.result().status for call in (await asyncio.wait(waiting))[0]] == [Status.OK] * 11


async def test_an_add_without_an_answer_is_a_timeout_and_may_have_taken_effect(world: TransportWorld) -> None:
    await world.transport.ask(BOOKIE, Info(), DEADLINE_S)  # connects: a later call cannot time out unsent
    stuck = world.block_journal()
    batch = AddBatch(LEDGER, KEY, [entry(0)])
    assert (await world.transport.add(BOOKIE, batch, SOON_S)).status is Status.TIMEOUT
    await stuck.has_begun.wait()
    stuck.release()
    assert (await world.add(entry(1))).status is Status.OK
    assert list((await world.read(0, 1)).results) == ok(0, 1)


async def test_a_fence_without_an_answer_is_a_timeout_but_takes_effect(world: TransportWorld) -> None:
    await world.transport.ask(BOOKIE, Info(), DEADLINE_S)  # connects first
    stuck = world.block_journal()
    assert (await world.transport.ask(BOOKIE, Fence(LEDGER, KEY), SOON_S)).status is Status.TIMEOUT
    await stuck.has_begun.wait()
    stuck.release()
    assert (await world.add(entry(0))).status is Status.FENCED


async def test_adds_of_one_transport_arrive_in_the_order_of_the_calls(world: TransportWorld) -> None:
    replies = await asyncio.gather(*(world.add(entry(0, bytes([n]))) for n in range(100)))
    assert {reply.status for reply in replies} == {Status.OK}
    reply = await world.read(0)
    assert reply.results[0].packet == entry(0, bytes([99]))  # the last add replaced the others


async def test_adds_overlap(world: TransportWorld) -> None:
    stuck = world.block_journal()
    calls = [asyncio.create_task(world.add(entry(n))) for n in range(10)]
    await stuck.has_begun.wait()
    stuck.release()
    assert [reply.status for reply in await asyncio.gather(*calls)] == [Status.OK] * 10


async def test_closing_the_transport_answers_calls_in_flight(world: TransportWorld) -> None:
    stuck = world.block_journal()
    calls = [
        asyncio.create_task(world.add(entry(0))),
        asyncio.create_task(world.transport.ask(BOOKIE, Fence(LEDGER, KEY), DEADLINE_S)),
    ]
    await stuck.has_begun.wait()
    await world.transport.close()
    assert [reply.status for reply in await asyncio.gather(*calls)] == [Status.UNREACHABLE] * 2  # type: ignore[attr-defined]
    assert (await world.transport.ask(BOOKIE, Info(), DEADLINE_S)).status is Status.UNREACHABLE
    await world.transport.close()


async def test_a_cancelled_caller_does_not_disturb_the_bookie(world: TransportWorld) -> None:
    stuck = world.block_journal()
    calls = [
        asyncio.create_task(world.add(entry(0))),
        asyncio.create_task(world.transport.ask(BOOKIE, Fence(LedgerId(9), KEY), DEADLINE_S)),
    ]
    await stuck.has_begun.wait()
    for call in calls:
        call.cancel()
    assert all(isinstance(r, asyncio.CancelledError) for r in await asyncio.gather(*calls, return_exceptions=True))
    stuck.release()
    world.journal.before = yield_control
    assert (await world.add(entry(1))).status is Status.OK
