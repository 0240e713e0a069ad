"""What the quickstart counts as lost although every bookie of the ledger is registered."""

from __future__ import annotations

import random

import pytest

from auditor.quickstart.proof import ProofFailedError
from auditor.quickstart.shortfall import LedgerShortfall, recount_shortfalls
from auditor.quickstart.workload import WrittenLedger
from auditor.quickstart.workload_plan import fragmented_ledgers
from bookie.metadata.ledgers.ledgers import Versioned
from bookie.model.ids import EntryId
from bookie.model.metadata import LedgerMetadata
from bookie.wire.port import ListReply, Status
from tests.worlds.ledgers import LEDGER, make_metadata, make_packets, names
from tests.worlds.repair import RepairWorld, a_world
from tests.worlds.virtual_time import in_virtual_time

WRITTEN = WrittenLedger(fragmented_ledgers(random.Random(1))[0], LEDGER)
SIZES = WRITTEN.spec.sizes


async def without(world: RepairWorld, metadata: LedgerMetadata, bookie: str, lost: set[int]) -> None:
    """Return the ledger as its writer left it if ``bookie`` did not receive some entries."""
    ledger: Versioned = await world.ledgers.create(LEDGER, metadata)
    packets = make_packets(LEDGER, (metadata.last_entry_id or 0) + 1)
    await world.bookies.fill(ledger, {entry_id: packet for entry_id, packet in packets.items() if entry_id not in lost})
    for other in set(metadata.members()) - {bookie}:
        await world.bookies.put(other, LEDGER, [packets[entry_id] for entry_id in packets if entry_id in lost])


@in_virtual_time
async def test_missing_entries_of_a_live_bookie_are_counted_by_fragment_and_size() -> None:
    async with a_world("a b c d") as world:
        metadata = make_metadata((0, "a b c"), (10, "a b d"), (20, "a c d"), quorum=(3, 2), last=29)
        await without(world, metadata, "b", {4, 5, 19})
        await world.tasks.marking.mark(LEDGER, names("b"))
        found = await recount_shortfalls(world.ports(world.store).client(), [WRITTEN])
        assert found == {LEDGER: LedgerShortfall(frozenset({EntryId(0), EntryId(10)}), SIZES[4] + SIZES[5] + SIZES[19])}


@in_virtual_time
async def test_a_mark_without_a_loss_is_not_counted() -> None:
    async with a_world("a b c") as world:
        await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=9), 10)
        await world.tasks.marking.mark(LEDGER, names("b"))
        assert await recount_shortfalls(world.ports(world.store).client(), [WRITTEN]) == {}


@in_virtual_time
async def test_missing_entries_of_a_dead_bookie_are_left_to_the_audit() -> None:
    async with a_world("a b c") as world:
        await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=9), 10)
        await world.kill("b")
        await world.tasks.marking.mark(LEDGER, names("b"))
        assert await recount_shortfalls(world.ports(world.store).client(), [WRITTEN]) == {}


@in_virtual_time
async def test_a_bookie_that_cannot_list_its_entries_ends_the_count() -> None:
    async with a_world("a b c") as world:
        await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=9), 10)
        await world.tasks.marking.mark(LEDGER, names("b"))
        world.bookies["b"].list_replies.append(ListReply(Status.IO_ERROR, detail="disk"))
        with pytest.raises(ProofFailedError, match="b does not list ledger 7: IO_ERROR disk"):
            await recount_shortfalls(world.ports(world.store).client(), [WRITTEN])
