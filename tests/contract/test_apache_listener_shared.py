"""The resources shared by all connections of the listener are bounded, and no connection can occupy all of them."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

import pytest

from bookie.model.ids import LedgerId
from bookie.server.apache.limits import ListenerLimits
from bookie.wire.apache import protocol_pb2 as pb
from bookie.wire.apache.framing import framed
from tests.contract.apache_listener_world import DEADLINE_S, Client, Listening, listening
from tests.worlds.apache_listener import add, entry, read

LARGE = 300 << 10


def numbered(message: pb.Request, txn: int) -> pb.Request:
    message.header.txnId = txn
    return message


async def settled(world: Listening) -> None:
    """Wait until all sent data has arrived, and all possible work has begun."""
    before = -1
    while before != len(world.service.batches):
        before = len(world.service.batches)
        probe = await world.connect()
        for _ in range(20):
            assert (await probe.ask(read(0, ledger=99))).status == pb.ENOLEDGER
        probe.close()


async def stored(world: Listening, size: int) -> None:
    """Store entry 0 with this size."""
    writer = await world.connect()
    assert (await writer.ask(add(entry(0, size=size)))).status == pb.EOK
    writer.close()


def half(client: Client) -> None:
    """Send the first half of a large frame."""
    client.writer.write(framed(add(entry(0, size=LARGE)).SerializeToString())[: LARGE // 2])


@pytest.mark.parametrize("size", [5, 4096])
async def test_adds_of_many_connections_share_one_memory_bound_and_are_all_answered(size: int) -> None:
    connections, count, bound = 40, 60, 64 << 10
    async with listening(ListenerLimits(all_add_bytes_max=bound)) as world:
        world.service.may_go.clear()
        clients = [await world.connect() for _ in range(connections)]
        for number, client in enumerate(clients):
            packets = [entry(entry_id, ledger=number, size=size) for entry_id in range(count)]
            client.send(*(numbered(add(packet), txn) for txn, packet in enumerate(packets)))
        await settled(world)
        held = sum(len(packet) for batch in world.service.batches for packet in batch.entries)
        largest = count * len(entry(0, size=size))
        assert 0 < held <= max(bound, largest)
        assert len(world.service.batches) < connections
        world.service.may_go.set()
        for client in clients:
            answers = await client.answers(count)
            assert {answer.header.txnId: answer.status for answer in answers} == dict.fromkeys(range(count), pb.EOK)


async def test_a_flooding_connection_does_not_block_others() -> None:
    async with listening(ListenerLimits(all_add_bytes_max=1)) as world:
        world.service.may_go.clear()
        flooding, modest = await world.connect(), await world.connect()
        flooding.send(*(add(entry(0, ledger=number)) for number in range(100)))
        await world.service.has_begun.wait()
        modest.send(add(entry(0, ledger=1000)))
        await settled(world)
        assert len(world.service.batches) == 1
        world.service.may_go.set()
        assert (await modest.answer()).status == pb.EOK
        await flooding.answers(100)
        order = [batch.ledger_id for batch in world.service.batches]
        assert order.index(LedgerId(1000)) == 2  # the next request of the flood was queued before it


async def test_a_connection_that_ends_while_waiting_does_not_block_others() -> None:
    async with listening(ListenerLimits(all_add_bytes_max=1)) as world:
        world.service.may_go.clear()
        first, leaving, last = [await world.connect() for _ in range(3)]
        first.send(add(entry(0, ledger=1)))
        await settled(world)
        leaving.send(add(entry(0, ledger=2)))
        await settled(world)
        last.send(add(entry(0, ledger=3)))
        await settled(world)
        leaving.close()
        await settled(world)
        world.service.may_go.set()
        assert (await first.answer()).status == (await last.answer()).status == pb.EOK
        assert (await last.ask(add(entry(1, ledger=3)))).status == pb.EOK


async def test_a_client_that_reads_no_answers_does_not_block_others() -> None:
    size, count = 1 << 20, 64
    limits = ListenerLimits(unsent_bytes_max=64 << 10, all_answer_bytes_max=64 << 20, unfetched_s=3600.0)
    async with listening(limits) as world:
        await stored(world, size)
        stuck = await world.connect()
        stuck.writer.transport.pause_reading()  # type: ignore[attr-defined]
        stuck.send(*([read(0)] * count))
        others = [await world.connect() for _ in range(5)]
        for other in others:
            other.send(*([read(0)] * 16))
            assert {answer.status for answer in await other.answers(16)} == {pb.EOK}
        stuck.writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert len(await stuck.answers(count)) == count


async def test_clients_that_fill_the_answer_buffer_and_read_nothing_are_closed_if_others_wait(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A test on virtual time shows that the others stay open. Here a stalled machine could make a client look slow."""
    size, count = 4 << 20, 16
    limits = ListenerLimits(unsent_bytes_max=64 << 10, all_answer_bytes_max=1 << 20, unfetched_s=0.2, reads_max=1)
    async with listening(limits) as world:
        await stored(world, size)
        stuck = await world.connect()
        stuck.writer.transport.pause_reading()  # type: ignore[attr-defined]
        stuck.send(*([read(0)] * count))
        name = str(stuck.writer.get_extra_info("sockname"))
        async with asyncio.timeout(DEADLINE_S):
            while name not in closed_peers(caplog):
                waiting = await world.connect()
                waiting.send(read(0))
                with suppress(ConnectionError):
                    await waiting.reader.read(1)  # the first byte of its answer
                waiting.close()
        stuck.writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert await stuck.received() < size * count
        patient = await world.connect()
        assert (await patient.ask(read(0))).status == pb.EOK


def closed_peers(caplog: pytest.LogCaptureFixture) -> set[str]:
    """Return the peers whose connections were closed because they did not read their answers."""
    warnings = [record.__dict__ for record in caplog.records if record.levelno == logging.WARNING]
    return {warning["peer"] for warning in warnings if "did not read" in warning["reason"]}


async def test_a_slow_client_keeps_its_connection_if_no_other_client_waits() -> None:
    limits = ListenerLimits(unsent_bytes_max=64 << 10, unfetched_s=0.01)
    async with listening(limits) as world:
        await stored(world, 4 << 20)
        slow = await world.connect()
        slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
        slow.send(*([read(0)] * 8))
        for _ in range(50):
            await stored(world, 4 << 20)
        slow.writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert {answer.status for answer in await slow.answers(8)} == {pb.EOK}


async def test_large_frames_wait_for_room_until_earlier_ones_have_arrived() -> None:
    limits = ListenerLimits(all_frame_bytes_max=LARGE + 1000)
    async with listening(limits) as world:
        first, second, small = [await world.connect() for _ in range(3)]
        half(first)
        await settled(world)
        half(second)
        await settled(world)
        second.writer.write(framed(add(entry(0, size=LARGE)).SerializeToString())[LARGE // 2 :])
        await settled(world)
        assert world.service.batches == []
        assert (await small.ask(add(entry(0)))).status == pb.EOK
        first.writer.write(framed(add(entry(0, size=LARGE)).SerializeToString())[LARGE // 2 :])
        assert (await first.answer()).status == pb.EOK
        assert (await second.answer()).status == pb.EOK
        for number in range(10):
            assert (await second.ask(add(entry(number, size=LARGE)))).status == pb.EOK


async def test_an_incomplete_large_frame_is_given_up_if_others_wait(caplog: pytest.LogCaptureFixture) -> None:
    limits = ListenerLimits(all_frame_bytes_max=LARGE + 1000, frame_s=0.05)
    async with listening(limits) as world:
        dawdling, next_one = await world.connect(), await world.connect()
        half(dawdling)
        await settled(world)
        assert (await next_one.ask(add(entry(0, size=LARGE)))).status == pb.EOK
        assert await dawdling.is_closed()
        [line] = [record for record in caplog.records if record.levelno == logging.WARNING]
        assert "did not arrive in time" in line.__dict__["reason"]


def one_and_a_half(first: int, size: int = 5) -> tuple[bytes, bytes]:
    """Return an add with the beginning of the next one, and the rest of the second add."""
    frames = [
        framed(numbered(add(entry(number, size=size)), number).SerializeToString()) for number in (first, first + 1)
    ]
    return frames[0] + frames[1][:-3], frames[1][-3:]


async def test_an_add_waits_for_one_that_is_still_arriving_to_share_a_commit() -> None:
    async with listening(ListenerLimits(gather_s=3600.0)) as world:
        client = await world.connect()
        begin, rest = one_and_a_half(0)
        client.writer.write(begin)
        await settled(world)
        assert world.service.batches == []
        client.writer.write(rest)
        assert {answer.header.txnId for answer in await client.answers(2)} == {0, 1}


async def test_adds_wait_for_others_only_briefly_and_only_for_small_ones() -> None:
    async with listening(ListenerLimits(gather_s=0.001)) as world:
        client = await world.connect()
        client.writer.write(one_and_a_half(0)[0])
        assert (await client.answer()).header.txnId == 0
    async with listening(ListenerLimits(gather_s=3600.0)) as world:
        client = await world.connect()
        client.writer.write(one_and_a_half(0, 2 << 20)[0])
        assert (await client.answer()).header.txnId == 0


async def test_stop_does_not_wait_for_an_add_that_is_still_arriving() -> None:
    async with listening(ListenerLimits(gather_s=3600.0)) as world:
        client = await world.connect()
        client.writer.write(one_and_a_half(0)[0])
        await settled(world)
        await world.listener.stop()
        assert await client.is_closed()
