"""The add-quorum timeout, and the explicit LAC."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.client.errors import AddQuorumTimeoutError
from bookie.client.options import InvalidWriterOptionsError, WriterOptions
from bookie.client.writer.pipeline import QuorumTimeout
from bookie.client.writer.writer import LedgerWriter
from bookie.model.digest import digest_for
from bookie.model.metadata import DigestType
from bookie.model.packet import unpack_lac
from bookie.wire.port import Status
from tests.worlds.writer import WriterWorld, in_world

TIMEOUT = WriterOptions(add_quorum_timeout_s=3)
EXPLICIT = WriterOptions(explicit_lac_interval_s=1)


@in_world(3)
async def test_adds_that_take_too_long_are_in_doubt_and_the_ledger_closes_at_the_last_ack(world: WriterWorld) -> None:
    writer = await world.writer(3, 3, 2, TIMEOUT)
    await world.fill(writer, 5)
    await asyncio.sleep(100)  # the timeout does not run while the writer is idle
    await world.fill(writer, 5)
    for bookie in world.bookies.values():
        bookie.is_silent = True
    began = asyncio.get_running_loop().time()
    waiters = [await world.submit(writer) for _ in range(3)]
    for result in await asyncio.gather(*waiters, return_exceptions=True):
        assert isinstance(result, AddQuorumTimeoutError)
    assert asyncio.get_running_loop().time() - began == pytest.approx(3)
    with pytest.raises(AddQuorumTimeoutError):
        await writer.append(b"x")
    metadata = await writer.close()
    assert (metadata.last_entry_id, metadata.length) == (9, 70)


@in_world(3)
async def test_a_slow_cluster_that_keeps_up_does_not_time_out(world: WriterWorld) -> None:
    writer = await world.writer(3, 3, 2, TIMEOUT)
    for bookie in world.bookies.values():
        bookie.latency_s = 2.5
    for _ in range(20):
        waiter = await world.submit(writer)
        await asyncio.sleep(1)
    assert await waiter == 19
    await writer.close()


@given(
    bursts=st.lists(st.tuples(st.integers(0, 5), st.floats(0, 3)), max_size=20),
    confirmed=st.lists(st.integers(-1, 60), max_size=20),
)
def test_the_timeout_counts_from_the_oldest_unconfirmed_entry(
    bursts: list[tuple[int, float]], confirmed: list[int]
) -> None:
    timeout, now_s, end = QuorumTimeout(10), 0.0, 0
    admitted_s: dict[int, float] = {}
    last = -1
    for index, (count, pause_s) in enumerate(bursts):
        now_s += pause_s
        for entry in range(end, end + count):
            admitted_s[entry] = now_s
        end += count
        timeout.admitted(end, now_s)
        if index < len(confirmed):
            last = max(last, min(confirmed[index], end - 1))
        waiting = [at for entry, at in admitted_s.items() if entry > last]
        assert timeout.due_s(last) == (min(waiting) + 10 if waiting else None)


def lacs(world: WriterWorld, writer: LedgerWriter) -> list[int]:
    """Return every explicit LAC that a bookie received, sorted."""
    digest = digest_for(DigestType.CRC32C, b"")
    return sorted(
        unpack_lac(digest, reported, writer.ledger_id)
        for bookie in world.bookies.values()
        for reported in bookie.reported
    )


@in_world(5)
async def test_the_last_add_confirmed_is_sent_once_if_no_entry_contains_it(world: WriterWorld) -> None:
    writer = await world.writer(5, 3, 2, EXPLICIT)
    await world.fill(writer, 8)
    await asyncio.sleep(60)
    assert lacs(world, writer) == [7, 7, 7]  # once for each member of the write set of entry 7
    reported = [position for position in range(5) if world.member(writer, position).reported]
    assert reported == [2, 3, 4]
    await world.fill(writer, 1)
    await asyncio.sleep(60)
    assert lacs(world, writer) == [7, 7, 7, 8, 8, 8]
    await writer.close()
    await asyncio.sleep(60)
    assert len(lacs(world, writer)) == 6


@in_world(3)
async def test_no_explicit_lac_is_sent_while_entries_contain_it_or_if_it_is_off(world: WriterWorld) -> None:
    busy = await world.writer(3, 3, 2, EXPLICIT)
    quiet = await world.writer(3, 3, 2)
    await world.fill(quiet, 2)
    for _ in range(100):
        await world.fill(busy, 1)
        await asyncio.sleep(0.3)
    assert not any(bookie.reported for bookie in world.bookies.values())
    await busy.close()
    await quiet.close()


@in_world(3)
async def test_no_explicit_lac_is_sent_before_the_first_acknowledgement(world: WriterWorld) -> None:
    writer = await world.writer(3, 3, 2, EXPLICIT)
    await asyncio.sleep(60)
    assert lacs(world, writer) == []
    await writer.close()


@in_world(3)
async def test_a_refused_explicit_lac_is_sent_again_and_never_fails_the_writer(world: WriterWorld) -> None:
    writer = await world.writer(3, 3, 2, EXPLICIT)
    await world.fill(writer, 2)
    for bookie in world.bookies.values():
        bookie.refusal = Status.FENCED
    await asyncio.sleep(10)
    for bookie in world.bookies.values():
        bookie.refusal = None
    await asyncio.sleep(10)
    assert lacs(world, writer) == [1, 1, 1]
    await world.fill(writer, 2)
    await writer.close()


@pytest.mark.parametrize(
    "options",
    [
        WriterOptions(explicit_lac_interval_s=0),
        WriterOptions(explicit_lac_interval_s=float("nan")),
        WriterOptions(add_quorum_timeout_s=-1),
        WriterOptions(ensemble_changes_max=-1),
    ],
)
def test_impossible_options_create_no_ledger(options: WriterOptions) -> None:
    @in_world(3)
    async def run(world: WriterWorld) -> None:
        with pytest.raises(InvalidWriterOptionsError):
            await world.writer(options=options)
        assert [ledger_id async for ledger_id in world.client.ledgers()] == []

    run()
