"""Reading entries: the order in which replicas are asked, and the result of each failure."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest

from bookie.client.errors import EntryLostError, EntryUnavailableError, NoSuchEntryError
from bookie.client.ports import ClientPorts
from bookie.client.reader.reader import LedgerReader
from bookie.client.settings import ReadMode
from bookie.metadata.ledgers.ledgers import NoSuchLedgerError
from bookie.metadata.ledgers.serde import UnreadableMetadataError
from bookie.model.ids import BookieId, EntryId
from bookie.model.metadata import Fragment, LedgerState
from bookie.runtime.fault_points import inject_faults
from bookie.wire.port import EntryResult, ReadReply, Status
from bookie.wire.requests import Read
from tests.worlds.ledgers import LEDGER, names
from tests.worlds.recovery import (
    DIGEST,
    PAYLOAD,
    Asked,
    Proceed,
    RecoveryWorld,
    a_world,
    packet,
    transport_of,
    with_wrong_bytes,
)
from tests.worlds.virtual_time import in_virtual_time, run_virtual


async def reader_of(world: RecoveryWorld, ports: ClientPorts) -> LedgerReader:
    return LedgerReader(ports, await world.ledgers.read(LEDGER), DIGEST)


async def closed(world: RecoveryWorld, names: str, quorum: tuple[int, int], count: int) -> None:
    """Return a closed ledger with every copy in place."""
    ledger = await world.create((0, names), quorum=quorum)
    await world.put_all(ledger, 0, count - 1)
    await world.ledgers.write(LEDGER, ledger.metadata.closed(EntryId(count - 1), count * PAYLOAD), 0)


async def payloads(reader: LedgerReader) -> list[bytes]:
    return [entry.payload async for entry in reader.read_all()]


def expected(world: RecoveryWorld, count: int) -> list[bytes]:
    return [world.unpacked(packet(entry_id)).payload for entry_id in range(count)]


def only(status: Status) -> Any:
    async def hook(asked: Asked, proceed: Proceed) -> Any:
        return ReadReply(status) if isinstance(asked, Read) else await proceed()

    return hook


def after(world: RecoveryWorld, seconds: float) -> Any:
    async def hook(asked: Asked, proceed: Proceed) -> Any:
        if isinstance(asked, Read):
            await world.clock.sleep(seconds)
        return await proceed()

    return hook


async def wrong_digest(asked: Asked, proceed: Proceed) -> Any:
    reply = await proceed()
    return with_wrong_bytes(reply, range(1000)) if isinstance(asked, Read) else reply


@pytest.mark.parametrize("mode", ReadMode)
@pytest.mark.parametrize("broken", ["", "a", "b", "a b"])
@pytest.mark.parametrize("how", ["down", "hang", "digest", "io"])
def test_every_mode_reads_the_same_bytes(mode: ReadMode, broken: str, how: str) -> None:
    """Catalogue 61, 63 and 64."""

    async def scenario() -> None:
        async with a_world("a b c d") as world:
            await closed(world, "a b c d", (3, 2), 50)
            ports = world.client(read_mode=mode, read_chunk_entries=16)
            for name in broken.split():
                match how:
                    case "down":
                        transport_of(ports).faults(BookieId(name)).is_unreachable = True
                    case "hang":
                        transport_of(ports).faults(BookieId(name)).is_request_lost = True
                    case "digest":
                        transport_of(ports).hooks[name] = wrong_digest
                    case _:
                        transport_of(ports).hooks[name] = only(Status.IO_ERROR)
            reader = await reader_of(world, ports)
            assert await payloads(reader) == expected(world, 50)
            assert (await reader.read(EntryId(49))).payload == expected(world, 50)[49]

    run_virtual(scenario())


@in_virtual_time
async def test_only_one_replica_is_read_if_it_answers() -> None:
    async with a_world("a b c") as world:
        await closed(world, "a b c", (3, 2), 30)
        ports = world.client(read_chunk_entries=1000)
        assert len(await payloads(await reader_of(world, ports))) == 30
        assert transport_of(ports).count(Read) == 3  # one read of each member, striped


@pytest.mark.parametrize(
    ("mode", "seconds"), [(ReadMode.SEQUENTIAL, 2.0), (ReadMode.SPECULATIVE, 1.0), (ReadMode.PARALLEL, 0.0)]
)
def test_an_unreachable_replica_delays_a_reader_by_a_bounded_time(mode: ReadMode, seconds: float) -> None:
    async def scenario() -> None:
        async with a_world("a b c") as world:
            await closed(world, "a b c", (3, 2), 3)
            ports = world.client(read_mode=mode)
            transport_of(ports).faults(BookieId("a")).is_request_lost = True
            reader = await reader_of(world, ports)
            started = world.clock.monotonic_s()
            await reader.read(EntryId(0))
            assert world.clock.monotonic_s() - started == pytest.approx(seconds)
            await reader.read(EntryId(0))  # this bookie is asked last from now on
            assert world.clock.monotonic_s() - started == pytest.approx(seconds)

    run_virtual(scenario())


@in_virtual_time
async def test_a_slow_answer_still_counts_when_the_second_replica_fails() -> None:
    async with a_world("a b c") as world:
        await closed(world, "a b c", (2, 2), 3)
        ports = world.client()
        transport_of(ports).hooks.update(a=after(world, 1.8), b=only(Status.IO_ERROR))
        reader = await reader_of(world, ports)
        assert (await reader.read(EntryId(0))).entry_id == 0


@in_virtual_time
async def test_near_replicas_are_read_first() -> None:
    async with a_world("a b c d e") as world:
        await closed(world, "a b c d e", (3, 2), 20)
        ports = replace(world.client(), near=lambda bookie: {"c": 0, "e": 1}.get(bookie, 2))
        reader = await reader_of(world, ports)
        assert await payloads(reader) == expected(world, 20)
        asked = {bookie: read.entry_ids for bookie, read in transport_of(ports).calls if isinstance(read, Read)}
        for entry_id in range(20):
            write_set = {"abcde"[(entry_id + i) % 5] for i in range(3)}
            first = "c" if "c" in write_set else "e" if "e" in write_set else "abcde"[entry_id % 5]
            assert entry_id in asked[BookieId(first)]


@in_virtual_time
async def test_the_error_contains_the_reason_of_each_replica() -> None:
    async with a_world("a b c") as world:
        await closed(world, "a b c", (3, 2), 1)
        ports = world.client()
        transport_of(ports).hooks.update(a=wrong_digest, b=only(Status.LIMBO), c=only(Status.NO_ENTRY))
        with pytest.raises(EntryUnavailableError) as error:
            await (await reader_of(world, ports)).read(EntryId(0))
        assert error.value.evidence == {"a": Status.CORRUPT, "b": Status.LIMBO, "c": Status.NO_ENTRY}


@in_virtual_time
async def test_an_entry_that_no_bookie_stored_is_lost() -> None:
    async with a_world("a b c") as world:
        ledger = await world.create((0, "a b c"), quorum=(3, 2))
        await world.ledgers.write(LEDGER, ledger.metadata.closed(EntryId(0), 10), 0)
        with pytest.raises(EntryLostError):
            await (await reader_of(world, world.ports)).read(EntryId(0))


@in_virtual_time
async def test_another_entry_than_requested_is_not_accepted() -> None:
    async with a_world("a b c") as world:
        await closed(world, "a b c", (1, 1), 6)

        async def another(asked: Asked, proceed: Proceed) -> Any:
            reply = await proceed()
            if not isinstance(asked, Read):
                return reply
            other = packet(asked.entry_ids[0] + 3)
            return ReadReply(reply.status, [replace(result, packet=other) for result in reply.results])

        world.transport.every = another
        with pytest.raises(EntryUnavailableError) as error:
            await (await reader_of(world, world.ports)).read(EntryId(0))
        assert error.value.evidence == {"a": Status.CORRUPT}


@in_virtual_time
async def test_the_absence_of_another_entry_is_not_a_loss() -> None:
    async with a_world("a b c") as world:
        await closed(world, "a b c", (3, 2), 6)

        async def another(asked: Asked, proceed: Proceed) -> Any:
            if not isinstance(asked, Read):
                return await proceed()
            return ReadReply(Status.OK, [EntryResult(EntryId(asked.entry_ids[0] + 3), Status.NO_ENTRY)])

        world.transport.every = another
        with pytest.raises(EntryUnavailableError):
            await (await reader_of(world, world.ports)).read(EntryId(0))


@in_virtual_time
async def test_an_open_ledger_whose_bookies_are_unreachable_is_not_empty() -> None:
    async with a_world("a b c") as world:
        await world.create((0, "a b c"), quorum=(3, 2), filled_to=3)
        world.hang("a", "b", "c")
        with pytest.raises(EntryUnavailableError):
            await payloads(await reader_of(world, world.ports))


@in_virtual_time
async def test_nothing_outside_the_readable_part_is_returned() -> None:
    """Catalogue 62: an entry after the last add confirmed may still disappear."""
    async with a_world("a b c") as world:
        await world.create((0, "a b c"), quorum=(3, 2), filled_to=4)
        reader = await reader_of(world, world.ports)
        assert await reader.last_entry_id() == 3
        for entry_id in (-1, 4, 5):
            with pytest.raises(NoSuchEntryError):
                await reader.read(EntryId(entry_id))
        assert await payloads(reader) == expected(world, 4)


@in_virtual_time
async def test_a_reader_survives_the_replacement_of_the_whole_ensemble() -> None:
    """Catalogue 66."""
    async with a_world("a b c d e f") as world:
        await closed(world, "a b c", (3, 2), 10)
        reader = await reader_of(world, world.ports)
        assert (await reader.read(EntryId(0))).entry_id == 0
        ledger = await world.ledgers.read(LEDGER)
        moved = replace(ledger.metadata, fragments=(Fragment(EntryId(0), names("d e f")),))
        for entry_id in range(10):
            for name in "def":
                await world.put(name, packet(entry_id))
        await world.ledgers.write(LEDGER, moved, ledger.version)
        world.stop_listening("a", "b", "c")
        assert await payloads(reader) == expected(world, 10)


@in_virtual_time
async def test_a_ledger_deleted_meanwhile_raises_no_such_ledger() -> None:
    async with a_world("a b c") as world:
        await closed(world, "a b c", (3, 2), 3)
        reader = await reader_of(world, world.ports)
        await world.ledgers.delete(LEDGER)
        world.stop_listening("a", "b", "c")
        with pytest.raises(NoSuchLedgerError):
            await reader.read(EntryId(0))
        with pytest.raises(NoSuchLedgerError):
            await reader.refresh()


@in_virtual_time
async def test_metadata_that_became_unreadable() -> None:
    async with a_world("a b c") as world:
        await world.create((0, "a b c"), quorum=(3, 2))
        reader = await reader_of(world, world.ports)
        path = world.ledgers.path(LEDGER)
        await world.store.set(path, b"BookieMetadataFormatVersion\t3\n\xff\xff", -1)
        with pytest.raises(UnreadableMetadataError):
            await reader.refresh()
        with pytest.raises(UnreadableMetadataError):
            await reader.quorum_last_add_confirmed()
        with pytest.raises(UnreadableMetadataError):
            await world.recover()


@in_virtual_time
async def test_large_entries_are_read_within_the_bounds_of_an_answer() -> None:
    async with a_world("a b c") as world:
        size, count = 1 << 20, 40
        ledger = await world.create((0, "a b c"), quorum=(2, 1))
        for entry_id in range(count):
            data = packet(entry_id, payload=bytes([entry_id]) * size, length=(entry_id + 1) * size)
            for i in range(2):
                await world.put("abc"[(entry_id + i) % 3], data)
        reader = LedgerReader(world.ports, ledger, DIGEST)
        seen = [entry.payload[0] async for entry in reader.read_all()]  # open: entry sizes are unknown
        assert seen == list(range(count - 1))


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("mode", ReadMode)
def test_no_wrong_byte_is_returned_whatever_fails(seed: int, mode: ReadMode) -> None:
    async def scenario() -> None:
        rng = random.Random(seed)
        async with a_world("a b c d e") as world:
            await closed(world, "a b c d e", (3, 2), 60)
            ports = world.client(read_mode=mode, read_chunk_entries=rng.choice([1, 7, 60]))

            async def hook(asked: Asked, proceed: Proceed) -> Any:
                if not isinstance(asked, Read):
                    return await proceed()
                await world.clock.sleep(rng.choice([0, 0, 0.1, 1.5]))
                reply = await proceed()
                match rng.randrange(8):
                    case 0:
                        return ReadReply(Status.UNREACHABLE)
                    case 1:
                        return with_wrong_bytes(reply, range(60))
                    case 2:
                        return ReadReply(reply.status, reply.results[: rng.randint(1, len(reply.results))])
                    case 3:
                        return ReadReply(Status.TIMEOUT, reply.results[:3])
                    case _:
                        return reply

            transport_of(ports).every = hook
            reader = await reader_of(world, ports)
            wanted, done = expected(world, 60), 0
            with inject_faults(lambda name: name.startswith("reader.") and rng.random() < 0.2):
                for _ in range(200):
                    try:
                        async for entry in reader.read_range(EntryId(done), EntryId(59)):
                            assert (entry.entry_id, entry.payload) == (done, wanted[done])
                            done += 1
                        break
                    except EntryUnavailableError:
                        continue
            assert done == 60

    run_virtual(scenario())


@in_virtual_time
async def test_an_open_ledger_that_is_in_recovery_can_be_read() -> None:
    async with a_world("a b c") as world:
        await world.create((0, "a b c"), quorum=(3, 2), state=LedgerState.IN_RECOVERY, filled_to=4)
        assert await payloads(await reader_of(world, world.ports)) == expected(world, 4)


@in_virtual_time
async def test_a_read_that_is_cancelled_twice_leaves_no_request_running() -> None:
    async with a_world("a b c") as world:
        await closed(world, "a b c", (3, 2), 1)
        ports = world.client(read_mode=ReadMode.PARALLEL)
        for name in names("a b c"):
            transport_of(ports).faults(name).is_request_lost = True
        reader = await reader_of(world, ports)
        before = asyncio.all_tasks()
        reading = asyncio.create_task(reader.read(EntryId(0)))
        await asyncio.sleep(1)
        for _ in range(2):  # the second time, it waits for the end of its first request
            reading.cancel()
            await asyncio.sleep(0)
        await asyncio.sleep(0.1)
        assert reading.cancelled()
        assert asyncio.all_tasks() == before
