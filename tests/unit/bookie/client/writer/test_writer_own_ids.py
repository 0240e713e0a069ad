"""Entry ids that the application chooses."""

from __future__ import annotations

import asyncio
import random

import pytest

from bookie.client.errors import (
    AddOutcomeUnknownError,
    DuplicateEntryIdError,
    EntryIdTooFarError,
    EntryTooLargeError,
    InvalidEntryIdError,
    LedgerFencedError,
    WriterClosedError,
)
from bookie.client.options import WriterOptions
from bookie.model.digest import digest_for
from bookie.model.ids import EntryId
from bookie.model.metadata import DigestType
from bookie.model.packet import ENTRY_PAYLOAD_MAX, unpack
from bookie.wire.port import Status
from tests.worlds.writer import WriterWorld, in_world

OWN = WriterOptions(has_own_entry_ids=True)


@pytest.mark.parametrize("seed", range(5))
def test_entries_in_any_order_are_acknowledged_in_order_and_stored_completely(seed: int) -> None:
    @in_world(4)
    async def run(world: WriterWorld) -> None:
        writer = await world.writer(3, 2, 2, OWN)
        order = list(range(200))
        random.Random(seed).shuffle(order)
        acknowledged: list[int] = []
        waiters = []
        for count, n in enumerate(order):
            if count == 100:
                world.member(writer, 1).refusal = Status.IO_ERROR
            waiter = world.watch(writer, await writer.submit_at(EntryId(n), b"%d" % n), b"%d" % n)
            waiter.add_done_callback(lambda done: acknowledged.append(done.result()))
            waiters.append(waiter)
        await asyncio.gather(*waiters)
        assert acknowledged == list(range(200))
        metadata = await writer.close()
        assert metadata.last_entry_id == 199
        length, digest = 0, digest_for(DigestType.CRC32C, b"")
        for n in range(200):
            fragment = metadata.fragments[metadata.fragment_index(EntryId(n))]
            packet = world.bookies[fragment.members[n % 3]].stored[writer.ledger_id, EntryId(n)]
            entry = unpack(digest, packet, writer.ledger_id, EntryId(n))
            length += len(b"%d" % n)
            assert (entry.payload, entry.length) == (b"%d" % n, length)
        assert metadata.length == length

    run()


@in_world(3)
async def test_bad_ids_are_refused_before_anything_is_changed(world: WriterWorld) -> None:
    writer = await world.writer(3, 2, 2, OWN, pipeline_entries_max=10, pipeline_bytes_max=1000)
    assert await writer.append_at(EntryId(0), b"a") == 0
    later = await writer.submit_at(EntryId(5), b"f")
    for bad, error in (
        (-1, InvalidEntryIdError),
        (1 << 63, InvalidEntryIdError),
        (0, DuplicateEntryIdError),
        (5, DuplicateEntryIdError),
        (12, EntryIdTooFarError),
    ):
        with pytest.raises(error):
            await writer.submit_at(EntryId(bad), b"other")
    with pytest.raises(EntryIdTooFarError, match="bytes already wait"):
        await writer.submit_at(EntryId(6), bytes(1000))
    with pytest.raises(EntryTooLargeError):
        await writer.submit_at(EntryId(1), bytes(ENTRY_PAYLOAD_MAX + 1))
    with pytest.raises(InvalidEntryIdError, match="append_at"):
        await writer.append(b"without an id")
    for n in range(1, 5):
        await writer.submit_at(EntryId(n), b"%d" % n)
    assert await later == 5
    metadata = await writer.close()
    assert (metadata.last_entry_id, metadata.length) == (5, 6)
    assert world.member(writer, 2).stored[writer.ledger_id, EntryId(5)].endswith(b"f")


@in_world(3)
async def test_ids_are_refused_if_the_writer_assigns_them(world: WriterWorld) -> None:
    writer = await world.writer()
    with pytest.raises(InvalidEntryIdError, match="has_own_entry_ids"):
        await writer.append_at(EntryId(0), b"x")
    assert await writer.append(b"x") == 0
    await writer.close()


@in_world(3)
async def test_the_ledger_is_closed_before_the_first_gap_and_later_entries_are_in_doubt(world: WriterWorld) -> None:
    writer = await world.writer(3, 3, 2, OWN)
    first = [await writer.submit_at(EntryId(n), b"x") for n in (1, 0, 4, 3, 6)]
    metadata = await writer.close()
    assert (metadata.last_entry_id, metadata.length) == (1, 2)
    results = await asyncio.gather(*first, return_exceptions=True)
    assert results[:2] == [1, 0]
    assert all(isinstance(result, AddOutcomeUnknownError) for result in results[2:])
    with pytest.raises(WriterClosedError):
        await writer.submit_at(EntryId(2), b"x")


@in_world(3)
async def test_the_pipeline_stays_bounded_and_closing_admits_accepted_entries(world: WriterWorld) -> None:
    writer = await world.writer(3, 3, 3, OWN, pipeline_entries_max=5)
    waiters = [await writer.submit_at(EntryId(n), b"x") for n in (5, 4, 3, 2, 1)]
    submits = [asyncio.ensure_future(writer.submit_at(EntryId(n), b"x")) for n in (0, 6, 7)]
    await asyncio.sleep(0)
    state = writer._pipeline.state
    assert state.unsettled_entries <= 5
    metadata = await writer.close()
    assert metadata.last_entry_id is not None
    assert metadata.last_entry_id >= 5
    assert await asyncio.gather(*waiters) == [5, 4, 3, 2, 1]
    for submit in submits:
        assert (await (await submit)) <= metadata.last_entry_id


@in_world(3)
async def test_a_full_pipeline_admits_waiting_entries_each_time(world: WriterWorld) -> None:
    writer = await world.writer(3, 3, 3, OWN, pipeline_entries_max=2)
    async with asyncio.timeout(60):
        for start in (0, 4, 8):
            ids = [EntryId(n) for n in range(start, start + 4)]
            assert await asyncio.gather(*(writer.append_at(n, b"x") for n in ids)) == ids
    assert (await writer.close()).last_entry_id == 11


@in_world(3)
async def test_the_id_of_a_cancelled_call_that_waited_for_room_can_be_reused(world: WriterWorld) -> None:
    writer = await world.writer(3, 3, 3, OWN, pipeline_entries_max=1)
    first = await writer.submit_at(EntryId(0), b"x")
    second = asyncio.ensure_future(writer.submit_at(EntryId(1), b"taken back"))
    await asyncio.sleep(0)
    second.cancel()
    assert await first == 0
    await asyncio.sleep(1)
    assert await writer.append_at(EntryId(1), b"instead") == 1
    assert (await writer.close()).length == 8


@in_world(3)
async def test_entries_that_wait_for_a_missing_id_are_in_doubt_when_the_writer_fails(world: WriterWorld) -> None:
    writer = await world.writer(3, 2, 2, OWN)
    beyond = await writer.submit_at(EntryId(7), b"x")
    for bookie in world.bookies.values():
        bookie.refusal = Status.FENCED
    with pytest.raises(LedgerFencedError):
        await writer.append_at(EntryId(0), b"x")
    with pytest.raises(LedgerFencedError):
        await beyond
    with pytest.raises(LedgerFencedError):
        await writer.submit_at(EntryId(1), b"x")
    await writer.abandon()
