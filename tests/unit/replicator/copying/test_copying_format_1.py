"""Repair of closed ledgers with metadata of format 1, which contains neither password nor digest type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from bookie.metadata.tasks.parked import ParkReason
from bookie.model.ids import EntryId
from bookie.model.metadata import DigestType
from replicator.telemetry.events import Ending
from tests.worlds.ledgers import LEDGER, make_metadata, make_packets, names
from tests.worlds.repair import RepairWorld, a_world, flipped
from tests.worlds.virtual_time import in_virtual_time


async def lost_a_bookie(world: RepairWorld, digest_type: DigestType) -> Mapping[EntryId, bytes]:
    """Create ten entries on a, b and c with a password and this digest type; then c is lost."""
    spoken = make_metadata((0, "a b c"), quorum=(3, 3), last=9, length=100)
    silent = replace(spoken, digest_type=None, password=None, ctime_ms=None, format_version=1)
    ledger = await world.ledgers.create(LEDGER, silent)
    packets = make_packets(LEDGER, 10, digest_type=digest_type)
    await world.bookies.fill(ledger, packets)
    await world.lose("c")
    return packets


@in_virtual_time
async def test_copies_are_verified_by_the_digest_that_the_format_implies() -> None:
    async with a_world("a b c t") as world:
        packets = await lost_a_bookie(world, DigestType.CRC32)
        world.bookies["a"].results[EntryId(3)] = flipped
        await world.heal()
        metadata = await world.metadata(LEDGER)
        assert metadata.last_fragment.members == names("a b t")
        assert (metadata.format_version, metadata.password, metadata.digest_type) == (1, None, None)
        await world.assert_whole(LEDGER, packets, "t")
        assert await world.is_clean()


@in_virtual_time
async def test_copies_with_another_digest_are_not_copied_and_do_not_count_as_corrupt() -> None:
    async with a_world("a b c t") as world:
        await lost_a_bookie(world, DigestType.HMAC)
        before = await world.metadata(LEDGER)
        recorder = await world.heal()
        (result,) = recorder.results
        assert (result.ending, result.reason) == (Ending.PARKED, ParkReason.UNREADABLE_ENTRIES)
        assert "CRC32 was assumed" in result.detail
        assert recorder.corrupt == []
        assert await world.metadata(LEDGER) == before
