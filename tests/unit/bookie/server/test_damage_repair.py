"""Damaged entries are restored from other bookies: only verified entries, and only those of closed ledgers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookie.metadata.ledgers.ledgers import LedgerStore
from bookie.model.digest import master_key
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import DigestType, Fragment, LedgerMetadata
from bookie.runtime.telemetry.metrics import MetricSet
from bookie.server.copying import Copying
from bookie.server.metrics import DAMAGED, REPLACED, bookie_metrics
from bookie.server.upkeep.damage_repair import DamageRepair, sources_of
from bookie.server.upkeep.scrubber import Scrubber, ScrubProgress
from bookie.storage.entry_logs.entry_log import HEADER_SIZE, RECORD_HEADER_SIZE, log_path
from bookie.storage.scrubbing import DamagedCopy
from bookie.storage.settings import StorageSettings
from bookie.wire.port import AddBatch, EntryResult, Status
from tests.unit.bookie.server.test_copying_bookie import Source
from tests.worlds.clocks import VirtualClock
from tests.worlds.cluster import MemoryBookie, MemoryCluster, open_bookie
from tests.worlds.entries import packed_entry
from tests.worlds.virtual_time import in_virtual_time

US, OTHER, THIRD = BookieId("us:3181"), BookieId("other:3181"), BookieId("third:3181")
LEDGER = LedgerId(3)
OPEN = LedgerMetadata(3, 2, 2, (Fragment(EntryId(0), (US, OTHER, THIRD)),))
CLOSED = OPEN.closed(EntryId(9), 1000)


def entry(entry_id: int) -> bytes:
    return packed_entry(LEDGER, entry_id, bytes(100))


def test_the_other_members_of_the_write_set_are_sources() -> None:
    assert sources_of(CLOSED, US, EntryId(0)) == (OTHER,)
    assert sources_of(CLOSED, US, EntryId(2)) == (THIRD,)
    assert sources_of(CLOSED, US, EntryId(1)) == ()  # this bookie does not store the entry
    moved = replace(
        CLOSED, fragments=(Fragment(EntryId(0), (US, OTHER, THIRD)), Fragment(EntryId(3), (US, THIRD, OTHER)))
    )
    assert sources_of(moved, US, EntryId(3)) == (THIRD,)


@pytest.mark.parametrize(
    ("metadata", "entry_id"),
    [
        (OPEN, 0),
        (CLOSED, 12),
        (replace(CLOSED, digest_type=DigestType.DUMMY), 0),
        (replace(CLOSED, digest_type=None, password=None), 0),
        (replace(CLOSED, fragments=(Fragment(EntryId(5), (US, OTHER, THIRD)),)), 0),
    ],
)
def test_no_source_is_used_if_the_entry_cannot_be_proven(metadata: LedgerMetadata, entry_id: int) -> None:
    assert sources_of(metadata, US, EntryId(entry_id)) == ()


class DamagedWorld:
    """A bookie that has entries 0, 2, 3 and 5 of a ledger, with entry 3 damaged, and another bookie."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.source = Source()
        self.source.answers.set()
        self.metrics: MetricSet = bookie_metrics("1")
        self.cluster = MemoryCluster()

    async def prepare(self, metadata: LedgerMetadata | None = CLOSED) -> MemoryBookie:
        await self.cluster.found()
        if metadata is not None:
            await self.cluster.ledgers.create(LEDGER, metadata)
        bookie = await open_bookie(self.clock, settings=StorageSettings(), copying=Copying(self.source, self.clock))
        batch = [entry(n) for n in (0, 2, 3, 5)]
        added = await bookie.storage.add(AddBatch(LEDGER, master_key(b""), batch))
        assert added.status is Status.OK
        await bookie.storage.checkpoint()
        offset = HEADER_SIZE + 2 * (RECORD_HEADER_SIZE + len(entry(0))) + RECORD_HEADER_SIZE + 60
        bookie.ledgers.flip_bit(log_path(1), offset * 8)
        return bookie

    async def scrub(self, bookie: MemoryBookie) -> tuple[int, float]:
        """Return the numbers of damaged and replaced entries of one pass."""
        ledgers: LedgerStore = self.cluster.ledgers
        repair = DamageRepair(ledgers, bookie.service, US, "uuid").repair
        scrubber = Scrubber(
            bookie.storage,
            bookie.ledgers,
            US,
            self.metrics,
            self.clock,
            interval_s=1e6,
            bytes_per_s=1e9,
            repair=repair,
        )
        ended = await scrubber.run_pass(ScrubProgress(self.clock.epoch_ms()))
        replaced = self.metrics.registry.get_sample_value(REPLACED)
        assert replaced is not None
        assert self.metrics.registry.get_sample_value(DAMAGED) == ended.damaged - ended.replaced
        return ended.damaged, replaced


async def read(bookie: MemoryBookie) -> EntryResult:
    return (await bookie.storage.read(LEDGER, [EntryId(3)])).results[0]


@in_virtual_time
async def test_a_damaged_entry_is_replaced_and_the_next_pass_finds_nothing() -> None:
    world = DamagedWorld()
    bookie = await world.prepare()
    assert (await read(bookie)).status is Status.CORRUPT
    assert await world.scrub(bookie) == (1, 1)
    assert await read(bookie) == EntryResult(EntryId(3), Status.OK, entry(3))
    assert [(source, ids) for source, ids, _ in world.source.asked] == [(OTHER, (EntryId(3),))]
    await bookie.storage.checkpoint()
    assert await world.scrub(bookie) == (0, 1)


@pytest.mark.parametrize("metadata", [OPEN, None, CLOSED.closed(EntryId(2), 300)])
@in_virtual_time
async def test_an_entry_that_must_not_be_replaced_stays_damaged(metadata: LedgerMetadata | None) -> None:
    world = DamagedWorld()
    bookie = await world.prepare(metadata)
    assert await world.scrub(bookie) == (1, 0)
    assert (await read(bookie)).status is Status.CORRUPT
    assert world.source.asked == []


@in_virtual_time
async def test_the_log_has_one_line_per_ledger_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    world = DamagedWorld()
    bookie = await world.prepare()
    repair = DamageRepair(world.cluster.ledgers, bookie.service, US, "uuid")
    damaged = [DamagedCopy(LEDGER, EntryId(entry_id), "1.log", 0, "damaged") for entry_id in (3, 5)]
    world.source.answers.clear()
    assert await repair.repair(damaged) == 0
    world.source.answers.set()
    world.source.missing = frozenset({3, 5})
    assert await repair.repair(damaged) == 0
    assert await repair.repair([DamagedCopy(LEDGER, EntryId(30), "1.log", 0, "damaged")]) == 0
    found = [record.__dict__ for record in caplog.records if record.message == "damaged entries not replaced"]
    assert [(each["ledger_id"], each["entries"], each["first_entry_id"]) for each in found] == [
        (3, 2, 3),
        (3, 2, 3),
        (3, 1, 30),
    ]
    reasons = [each["error"] for each in found]
    assert reasons[0].startswith("other:3181: TIMEOUT")
    assert reasons[1] == "other:3181: NO_ENTRY"
    assert "not closed" in reasons[2]


@in_virtual_time
async def test_a_source_that_fails_lacks_the_entry_or_has_it_damaged_changes_nothing() -> None:
    world = DamagedWorld()
    bookie = await world.prepare()
    world.source.answers.clear()
    assert await world.scrub(bookie) == (1, 0)
    world.source.answers.set()
    world.source.missing = frozenset({3})
    assert await world.scrub(bookie) == (1, 0)
    world.source.missing = frozenset()
    world.source.sizes = lambda entry_id: 100_000
    world.source.covered = 0
    assert await world.scrub(bookie) == (1, 0)
    assert (await read(bookie)).status is Status.CORRUPT
