"""A ledger that is deleted during its repair, and another one that is created with its id (R170)."""

from __future__ import annotations

import pytest

from bookie.metadata.layout import task_path
from bookie.metadata.tasks.reservations import Reservation
from bookie.model.digest import digest_for
from bookie.model.ids import BookieId, EntryId
from bookie.model.metadata import DigestType
from bookie.model.packet import pack
from replicator.telemetry.events import Ending
from tests.worlds.cluster import ROOT
from tests.worlds.ledgers import LEDGER, PASSWORD, make_metadata, names
from tests.worlds.repair import RepairWorld, a_world
from tests.worlds.virtual_time import in_virtual_time, until, when

MIB = 1 << 20
OLD = make_metadata((0, "a b"), quorum=(2, 2), last=9)
DIGEST = digest_for(DigestType.CRC32C, PASSWORD)
OTHER_PACKETS = {
    EntryId(entry_id): pack(DIGEST, LEDGER, EntryId(entry_id), entry_id - 1, 10 * (entry_id + 1), b"of another")
    for entry_id in range(20)
}


async def replace_ledger(world: RepairWorld, members: str) -> None:
    """Delete the ledger, and create another one with its id and the same version of the metadata."""
    await world.ledgers.delete(LEDGER)
    await world.ledgers.create(LEDGER, make_metadata((0, members), quorum=(2, 2), last=19))
    for name in members.split():
        await world.bookies.put(name, LEDGER, list(OTHER_PACKETS.values()))


@pytest.mark.parametrize("members", ["a c", "a b"])
@pytest.mark.parametrize("moment", ["before_add", "before_list"])
def test_nothing_of_a_deleted_ledger_is_written_to_another_one_with_its_id(moment: str, members: str) -> None:
    @in_virtual_time
    async def story() -> None:
        async with a_world("a b c t") as world:
            await world.ledger(LEDGER, OLD, 10)
            await world.lose("b")
            await world.register("c", is_read_only=True)
            setattr(world.bookies["t"], moment, lambda: replace_ledger(world, members))
            recorder = await world.heal()
            assert recorder.endings()[0] is Ending.MARKED_AGAIN
            assert recorder.looks[0] == 0  # the metadata of the other ledger is unchanged
            assert (await world.metadata(LEDGER)).last_entry_id == 19
            await world.assert_whole(LEDGER, OTHER_PACKETS)
            assert await world.is_clean()

    story()


@in_virtual_time
async def test_the_progress_of_a_copy_of_a_deleted_ledger_does_not_count_for_another_one_with_its_id() -> None:
    async with a_world("a b t") as world:
        packets = await world.ledger(LEDGER, OLD, 10)
        await world.bookies.put("t", LEDGER, list(packets.values()))  # by a worker that died
        progress = Reservation(EntryId(0), 1, BookieId("t"), "1", end_entry_id=EntryId(10))
        await world.reservations.reserve(LEDGER, "token", [progress])
        await replace_ledger(world, "a b")
        await world.lose("b")
        await world.heal()
        await world.assert_whole(LEDGER, OTHER_PACKETS, "t")
        assert await world.is_clean()


@in_virtual_time
async def test_the_task_of_another_ledger_with_the_id_of_a_deleted_one_stays() -> None:
    async with a_world("a b t") as world:
        await world.tasks.marking.mark(LEDGER, names("b"))  # of a ledger that was deleted
        await world.kill("b")
        running = world.worker()

        async def create_during_completion(operation: str, path: str) -> None:
            if operation == "sync" and path == task_path(ROOT, LEDGER) and world.version(LEDGER) is None:
                await world.ledgers.create(LEDGER, make_metadata((0, "a b"), quorum=(2, 2), last=19))
                for name in ("a", "b"):
                    await world.bookies.put(name, LEDGER, list(OTHER_PACKETS.values()))

        running.store.fault_hook = create_during_completion
        await running.worker.run()
        assert running.recorder.endings() == [Ending.MARKED_AGAIN, Ending.REPAIRED]
        await world.assert_whole(LEDGER, OTHER_PACKETS, "t")


@pytest.mark.parametrize("is_replaced", [False, True])
def test_the_copy_of_a_deleted_ledger_ends_soon(is_replaced: bool) -> None:
    @in_virtual_time
    async def story() -> None:
        async with a_world("a b t") as world:
            metadata = make_metadata((0, "a b"), quorum=(2, 2), last=599)
            await world.ledger(LEDGER, metadata, 600, payload_bytes=100_000)
            await world.lose("b")
            async with world.running(world.worker(once=False, bytes_per_second=MIB)):
                await when(lambda: bool(world.bookies["t"].adds))
                await world.ledgers.delete(LEDGER)
                if is_replaced:
                    await replace_ledger(world, "a b")
                await until(world.is_clean, 30)
            copied = sum(len(entry) for batch in world.bookies["t"].adds for entry in batch.entries)
            assert copied < 20 * MIB
            if is_replaced:
                await world.assert_whole(LEDGER, OTHER_PACKETS)

    story()
