"""What a run under random faults counts as a loss."""

from __future__ import annotations

import random

import pytest

from bookie.client.bookkeeper import BookKeeper
from bookie.model.digest import digest_for
from bookie.model.ids import EntryId
from bookie.model.metadata import DigestType
from bookie.model.packet import pack
from bookie.wire.port import Status
from tests.faults.verdict import faults_of_ledger
from tests.faults.workload import Workload, WrongBytesError, payload
from tests.worlds.ledgers import LEDGER, PASSWORD, make_metadata
from tests.worlds.repair import RepairWorld, a_world
from tests.worlds.virtual_time import in_virtual_time

DIGEST = digest_for(DigestType.CRC32C, PASSWORD)
METADATA = make_metadata((0, "a b c"), quorum=(3, 2), last=2)


def packet(entry: int, content: bytes | None = None) -> bytes:
    content = payload(LEDGER, entry) if content is None else content
    return pack(DIGEST, LEDGER, EntryId(entry), entry - 1, len(content), content)


async def stored(world: RepairWorld, *, but: tuple[str, int], instead: list[bytes]) -> BookKeeper:
    """Store the ledger on its three bookies, with other packets instead of one copy; return a client."""
    await world.ledgers.create(LEDGER, METADATA)
    for bookie in "abc":
        for entry in range(3):
            await world.bookies.put(bookie, LEDGER, instead if (bookie, entry) == but else [packet(entry)])
    return BookKeeper(world.ports(world.store).client())


@in_virtual_time
async def test_a_ledger_with_every_copy_has_no_faults() -> None:
    async with a_world("a b c") as world:
        client = await stored(world, but=("a", 0), instead=[packet(0)])
        assert await faults_of_ledger(client, LEDGER, acknowledged=3) == []


@pytest.mark.parametrize("instead", [[], [packet(1, b"other")], [packet(1)[:-1] + b"?"]])
@in_virtual_time
async def test_a_missing_copy_other_bytes_and_a_damaged_copy_are_faults(instead: list[bytes]) -> None:
    async with a_world("a b c") as world:
        client = await stored(world, but=("b", 1), instead=instead)
        assert len(await faults_of_ledger(client, LEDGER, acknowledged=3)) == 1


@in_virtual_time
async def test_an_acknowledged_entry_after_the_end_is_a_fault() -> None:
    async with a_world("a b c") as world:
        client = await stored(world, but=("a", 0), instead=[packet(0)])
        assert len(await faults_of_ledger(client, LEDGER, acknowledged=4)) == 1


@in_virtual_time
async def test_a_recovery_that_ends_before_an_acknowledged_entry_ends_the_run() -> None:
    async with a_world("a b c") as world:
        client = await stored(world, but=("a", 0), instead=[packet(0)])
        workload = Workload(random.Random(0), acknowledged={LEDGER: 4}, interrupted=[LEDGER])
        with pytest.raises(WrongBytesError):
            await workload.finish(client)


@in_virtual_time
async def test_a_recovery_that_fails_is_repeated_until_a_bookie_accepts_entries_again() -> None:
    async with a_world("a b c") as world:
        await world.ledgers.create(LEDGER, make_metadata((0, "a b c"), quorum=(3, 3)))
        for bookie in "abc":
            await world.bookies.put(bookie, LEDGER, [packet(0)])
        world.bookies["c"].add_replies += [Status.READ_ONLY] * 3
        workload = Workload(random.Random(0), acknowledged={LEDGER: 1}, interrupted=[LEDGER])
        await workload.finish(BookKeeper(world.ports(world.store).client()))
        assert workload.closed == {LEDGER: 1}
        assert workload.failures.total() > 0
