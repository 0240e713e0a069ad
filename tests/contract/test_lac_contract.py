"""Last adds confirmed through the transport port: reading, sending and waiting for them, with each transport."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from bookie.model.ids import NO_ENTRY, EntryId, LedgerId
from bookie.model.packet import ENTRY_PAYLOAD_MAX, pack_lac, unpack, unpack_lac
from bookie.wire.port import AddReply, EntryResult, LacReply, Status
from bookie.wire.requests import Fence, ReadLac, WaitLac, WriteLac
from tests.contract.transport_world import (
    BOOKIE,
    DEADLINE_S,
    KEY,
    LEDGER,
    SOON_S,
    Looked,
    TransportWorld,
    a_world,
    broken_disk,
    entry,
    lac,
    reported,
)
from tests.worlds.entries import DIGEST


@pytest.fixture(params=["memory", "grpc", "apache"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[TransportWorld]:
    async with a_world(request.param) as world:
        yield world


async def read_lac(world: TransportWorld) -> LacReply:
    return await world.transport.ask(BOOKIE, ReadLac(LEDGER), DEADLINE_S)


async def write_lac(world: TransportWorld, packet: bytes, key: bytes = KEY) -> AddReply:
    return await world.transport.ask(BOOKIE, WriteLac(LEDGER, key, packet), DEADLINE_S)


async def wait_lac(world: TransportWorld, beyond: int, wait_s: float = DEADLINE_S) -> LacReply:
    return await world.transport.ask(BOOKIE, WaitLac(LEDGER, EntryId(beyond), wait_s), 2 * DEADLINE_S)


async def waiting(world: TransportWorld, *beyond: int) -> list[asyncio.Task[LacReply]]:
    """Start long polls, and return them after each one has found nothing and has begun to wait."""
    polls = []
    for one in beyond:
        looked = world.index.before = Looked()
        polls.append(asyncio.create_task(wait_lac(world, one)))
        await looked.has_begun.wait()
    return polls


def stored(entry_id: int, *, lac: int = NO_ENTRY) -> EntryResult:
    return EntryResult(EntryId(entry_id), Status.OK, entry(entry_id, lac=lac))


async def test_an_unknown_ledger_has_no_lac(world: TransportWorld) -> None:
    assert await read_lac(world) == LacReply(Status.NO_LEDGER)
    assert world.storage.ledger_count == 0


async def test_the_last_entry_is_returned_as_evidence_of_the_lac(world: TransportWorld) -> None:
    await world.add(entry(3, lac=1), entry(4, lac=2))
    assert await read_lac(world) == LacReply(Status.OK, b"", stored(4, lac=2))
    assert (await world.add(entry(5))).status is Status.OK  # the ledger was not fenced


async def test_a_fenced_ledger_without_entries_has_no_lac(world: TransportWorld) -> None:
    await world.transport.ask(BOOKIE, Fence(LEDGER, KEY), DEADLINE_S)
    assert await read_lac(world) == LacReply(Status.NO_ENTRY)
    assert (await write_lac(world, lac(4))).status is Status.OK
    assert await read_lac(world) == LacReply(Status.NO_ENTRY, lac(4))


async def test_a_ledger_in_limbo_reports_limbo_and_its_explicit_lac(world: TransportWorld) -> None:
    await world.add(entry(3, lac=1))
    await write_lac(world, lac(2))
    await world.storage.set_limbo([LEDGER])
    reply = await read_lac(world)
    assert (reply.status, reply.explicit) == (Status.LIMBO, lac(2))
    assert (await wait_lac(world, 1)).explicit == lac(2)


async def test_an_unreadable_index_is_an_io_error(world: TransportWorld) -> None:
    await world.add(entry(0))
    world.index.before = broken_disk
    assert (await read_lac(world)).status is Status.IO_ERROR
    assert (await wait_lac(world, 0)).status is Status.IO_ERROR


async def test_an_explicit_lac_is_kept_as_it_was_written_and_never_lowered(world: TransportWorld) -> None:
    await world.add(entry(0))
    for wrote, kept in ((4, 4), (9, 9), (8, 9), (0, 9), ((1 << 63) - 1, (1 << 63) - 1)):
        assert await write_lac(world, lac(wrote)) == AddReply(Status.OK)
        reply = await read_lac(world)
        assert unpack_lac(DIGEST, reply.explicit, LEDGER) == kept
        assert (reply.status, reply.last_entry) == (Status.OK, stored(0))


async def test_an_explicit_lac_needs_the_master_key(world: TransportWorld) -> None:
    assert (await write_lac(world, lac(1))).status is Status.NO_LEDGER
    assert world.storage.ledger_count == 0
    await world.add(entry(0))
    assert (await write_lac(world, lac(1), key=b"other")).status is Status.UNAUTHORIZED
    assert (await write_lac(world, lac(1), key=bytes(5000))).status is Status.BAD_REQUEST
    assert (await read_lac(world)).explicit == b""


@pytest.mark.parametrize(
    "packet",
    [b"", b"x" * 15, lac(1)[:15], lac(1) + bytes(60), lac(-1), lac(-(1 << 63)), pack_lac(DIGEST, LedgerId(8), 1)],
    ids=["empty", "short", "cut", "long", "nothing confirmed", "negative", "other ledger"],
)
async def test_an_invalid_explicit_lac_is_refused(world: TransportWorld, packet: bytes) -> None:
    await world.add(entry(0))
    assert (await write_lac(world, packet)).status is Status.BAD_REQUEST
    assert (await read_lac(world)).explicit == b""


async def test_a_lac_that_is_already_known_is_returned_without_a_wait(world: TransportWorld) -> None:
    await world.add(entry(0), entry(1, lac=0))
    assert await wait_lac(world, NO_ENTRY) == LacReply(Status.OK, b"", stored(1, lac=0), stored(0))
    await write_lac(world, lac(1))
    assert await wait_lac(world, 0) == LacReply(Status.OK, lac(1), stored(1, lac=0), stored(1, lac=0))


async def test_an_add_wakes_the_waiters_for_its_lac(world: TransportWorld) -> None:
    await world.add(entry(0))
    first, second = await waiting(world, NO_ENTRY, 0)
    await world.add(entry(1, lac=0))
    assert await first == LacReply(Status.OK, b"", stored(1, lac=0), stored(0))
    assert not second.done()
    await world.add(entry(2, lac=1))
    assert await second == LacReply(Status.OK, b"", stored(2, lac=1), stored(1, lac=0))


async def test_an_explicit_lac_wakes_its_waiters(world: TransportWorld) -> None:
    await world.add(entry(0))
    [poll] = await waiting(world, NO_ENTRY)
    await write_lac(world, lac(0))
    assert await poll == LacReply(Status.OK, lac(0), stored(0), stored(0))


async def test_the_first_add_wakes_waiters_for_an_unknown_ledger(world: TransportWorld) -> None:
    [poll] = await waiting(world, 4)
    await world.add(entry(6, lac=5))
    assert await poll == LacReply(Status.OK, b"", stored(6, lac=5))  # entry 5 is on other bookies


async def test_other_ledgers_wake_no_waiter(world: TransportWorld) -> None:
    await world.add(entry(0))
    [poll] = await waiting(world, NO_ENTRY)
    other = LedgerId(8)
    await world.transport.ask(BOOKIE, Fence(other, KEY), DEADLINE_S)
    await world.transport.ask(BOOKIE, WriteLac(other, KEY, pack_lac(DIGEST, other, 3)), DEADLINE_S)
    assert (await read_lac(world)).explicit == b""
    assert not poll.done()
    await write_lac(world, lac(3))
    assert (await poll).explicit == lac(3)


async def test_a_lac_is_not_reported_before_it_is_durable(world: TransportWorld) -> None:
    await world.add(entry(0))
    [poll] = await waiting(world, NO_ENTRY)
    stuck = world.block_journal()
    add = asyncio.create_task(world.add(entry(1, lac=0)))
    await stuck.has_begun.wait()
    assert (await read_lac(world)).last_entry == stored(0)
    assert not poll.done()
    stuck.release()
    assert (await add).status is Status.OK
    assert (await poll).last_entry == stored(1, lac=0)


async def test_a_long_poll_returns_the_current_state_at_its_end(world: TransportWorld) -> None:
    assert await wait_lac(world, NO_ENTRY, wait_s=SOON_S) == LacReply(Status.NO_LEDGER)
    await world.add(entry(0))
    for wait_s in (SOON_S, 0.0, -1.0):
        assert await wait_lac(world, NO_ENTRY, wait_s) == LacReply(Status.OK, b"", stored(0))


async def test_a_long_poll_that_outlasts_its_deadline_is_a_timeout(world: TransportWorld) -> None:
    reply = await world.transport.ask(BOOKIE, WaitLac(LEDGER, NO_ENTRY, DEADLINE_S), SOON_S)
    assert reply.status is Status.TIMEOUT


@pytest.mark.parametrize("wait_s", [float("inf"), 1e12])
async def test_endless_waits_are_accepted(world: TransportWorld, wait_s: float) -> None:
    poll = asyncio.create_task(wait_lac(world, 0, wait_s))
    await world.add(entry(2, lac=1))
    assert (await poll).last_entry == stored(2, lac=1)


@pytest.mark.parametrize("beyond", [-2, -(1 << 63)])
async def test_invalid_long_polls_are_refused(world: TransportWorld, beyond: int) -> None:
    assert (await wait_lac(world, beyond)).status is Status.BAD_REQUEST


async def test_waiters_beyond_the_bound_are_answered_at_once(world: TransportWorld) -> None:
    await world.add(entry(0))
    polls = await waiting(world, 7, 8, 9)
    assert await wait_lac(world, 0) == LacReply(Status.OK, b"", stored(0))
    await write_lac(world, lac(10))
    assert [(await poll).explicit for poll in polls] == [lac(10)] * 3


async def test_a_bookie_that_shuts_down_answers_its_waiters(world: TransportWorld) -> None:
    [poll] = await waiting(world, NO_ENTRY)
    world.service.refuse_everything()
    assert (await poll).status is reported(world.kind, Status.SHUTTING_DOWN)


async def test_closing_the_transport_answers_its_waiters(world: TransportWorld) -> None:
    [poll] = await waiting(world, NO_ENTRY)
    await world.transport.close()
    assert (await poll).status is Status.UNREACHABLE


async def test_a_follower_misses_no_entry_while_entries_are_added(world: TransportWorld) -> None:
    last = 100

    async def follow() -> list[int]:
        known = int(NO_ENTRY)
        followed: list[int] = []
        while known < last - 1:
            reply = await wait_lac(world, known)
            assert reply.status in (Status.OK, Status.NO_LEDGER)
            if reply.last_entry is not None:
                found = unpack(DIGEST, reply.last_entry.packet, LEDGER, reply.last_entry.entry_id)
                assert found.last_add_confirmed > known
                assert reply.entry is not None
                assert reply.entry.entry_id == known + 1
                known = found.last_add_confirmed
                followed.append(known)
        return followed

    followers = [asyncio.create_task(follow()) for _ in range(3)]
    for entry_id in range(last + 1):
        assert (await world.add(entry(entry_id, lac=entry_id - 1))).status is Status.OK
    for follower in followers:
        assert (await follower)[-1] == last - 1


async def test_an_answer_with_two_of_the_largest_entries_arrives(world: TransportWorld) -> None:
    payload = bytes(ENTRY_PAYLOAD_MAX)
    assert (await world.add(entry(0, payload))).status is Status.OK
    assert (await world.add(entry(1, payload, lac=0))).status is Status.OK
    reply = await wait_lac(world, NO_ENTRY)
    assert reply.entry == EntryResult(EntryId(0), Status.OK, entry(0, payload))
    assert reply.last_entry == EntryResult(EntryId(1), Status.OK, entry(1, payload, lac=0))
