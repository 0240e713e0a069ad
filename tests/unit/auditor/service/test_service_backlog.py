"""The live backlog, counted from a store."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from auditor.api.control import Backlog, SeverityBacklog
from auditor.service.watch import backlog
from auditor.service.watch.backlog import (
    OTHER,
    READ_LEDGERS,
    BacklogCounter,
    LedgerVerdict,
    backlog_counter,
    judge,
    largest,
)
from bookie.metadata.bookies.drains import Drain, Drains
from bookie.metadata.bookies.registration import Registrations
from bookie.metadata.bookies.topology import TopologyStore
from bookie.metadata.layout import task_path
from bookie.metadata.nodes import create_with_parents
from bookie.metadata.tasks.locks import Task
from bookie.metadata.tasks.parked import ParkedTask, ParkedTasks, ParkReason
from bookie.metadata.tasks.underreplication import TaskPart, UnreadableTask
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import Fragment, LedgerMetadata
from bookie.model.severity import Severity
from tests.worlds.cluster import ROOT, MemoryCluster
from tests.worlds.ledgers import closed_ledger, make_metadata
from tests.worlds.virtual_time import in_virtual_time

A, B, C, D = (BookieId(f"bk{name}:1") for name in "abcd")
"""All bookies; the first two are registered."""


class Marks(MemoryCluster):
    """A cluster with marked ledgers."""

    parked: ParkedTasks
    counter: BacklogCounter

    @classmethod
    async def create(cls) -> Marks:
        marks = await cls().found()
        marks.parked = ParkedTasks(marks.store, ROOT)
        marks.counter = BacklogCounter(marks.tasks, marks.ledgers, marks.registrations, marks.parked, marks.clock)
        await marks.register(A)
        await marks.register(B, is_read_only=True)
        return marks

    async def ledger(self, ledger_id: int, *members: BookieId, missing: Sequence[BookieId] = (C,)) -> None:
        await self.ledgers.create(LedgerId(ledger_id), closed_ledger(*members))
        await self.tasks.marking.mark(LedgerId(ledger_id), missing)


@in_virtual_time
async def test_marked_ledgers_are_counted_by_the_copies_missing_now() -> None:
    marks = await Marks.create()
    await marks.ledger(1, A, B, C)
    first_ms = marks.clock.epoch_ms()
    await asyncio.sleep(60)
    await marks.ledger(2, A, C, D)
    await marks.ledger(3, C, D)
    await marks.ledger(4, B, A, C)
    await marks.ledger(5, A, B)  # its bookie is registered again
    await marks.ledger(6, A, B, missing=())  # a mark for a bad placement
    later_ms = marks.clock.epoch_ms()
    assert await marks.counter.count() == Backlog(
        counted_ms=later_ms,
        severities={
            Severity.BELOW_WRITE_QUORUM: SeverityBacklog(2, 2000, first_ms),
            Severity.CRITICAL: SeverityBacklog(1, 2000, later_ms),
            Severity.NO_LIVE_COPY: SeverityBacklog(1, 2000, later_ms),
            Severity.MISPLACED: SeverityBacklog(1, 0, later_ms),
        },
        healthy=SeverityBacklog(1, 0, later_ms),
        repairable={
            Severity.BELOW_WRITE_QUORUM: SeverityBacklog(2, 2000, first_ms),
            Severity.CRITICAL: SeverityBacklog(1, 2000, later_ms),
            Severity.MISPLACED: SeverityBacklog(1, 0, later_ms),
        },
        by_bookie={C: 4, D: 2},
        by_rack={"unknown": 4},
        named_ms={C: later_ms},
    )


@in_virtual_time
async def test_missing_copies_are_counted_once_per_ledger_for_each_bookie_and_rack() -> None:
    marks = await Marks.create()
    topology = TopologyStore(marks.store, marks.cluster)
    counter = backlog_counter(marks.store, marks.cluster, marks.clock)
    await topology.write(json.dumps({A: "/r1", B: "/r2", C: "/r3", D: "/r3"}))
    await marks.ledger(1, A, B, C)
    await marks.ledger(2, A, C, D)
    await marks.ledger(3, A, B)
    backlog = await counter.count()
    assert (backlog.by_bookie, backlog.by_rack) == ({C: 2, D: 1}, {"/r3": 2})
    await Drains(marks.store, ROOT).start(Drain(B, "test", 1))
    backlog = await counter.count()
    assert (backlog.by_bookie, backlog.by_rack) == ({B: 2, C: 2, D: 1}, {"/r2": 2, "/r3": 2})


@in_virtual_time
async def test_bookies_named_by_marks_are_kept_with_their_newest_mark_in_bounded_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    marks = await Marks.create()
    await marks.ledger(1, A, B, C, missing=(C, D))
    first_ms = marks.clock.epoch_ms()
    await asyncio.sleep(60)
    await marks.ledger(2, A, B, D, missing=(A, D))
    await marks.tasks.marking.mark(LedgerId(3), (C,))
    later_ms = marks.clock.epoch_ms()
    expected = {A: later_ms, C: later_ms, D: later_ms}
    assert (await marks.counter.count()).named_ms == expected, (
        "including registered bookies and bookies of deleted ledgers"
    )
    assert first_ms < later_ms
    monkeypatch.setattr(backlog, "NAMED_MAX", 1)
    assert len((await marks.counter.count()).named_ms) == 1


@in_virtual_time
async def test_without_a_readable_topology_everything_else_is_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    marks = await Marks.create()
    await marks.ledger(1, A, B, C)
    file = tmp_path / "topology.json"
    counter = backlog_counter(marks.store, marks.cluster, marks.clock, file)
    for text, rack in (('{"bkc:1": "/r9"}', "/r9"), ("nonsense", "unknown"), ('{"bkc": "/r8"}', "/r8")):
        file.write_text(text)
        for _ in range(2):
            backlog = await counter.count()
            assert (backlog.by_bookie, backlog.by_rack) == ({C: 1}, {rack: 1})
    assert [record.message for record in caplog.records] == ["racks of bookies are unknown"]


@given(st.dictionaries(st.text("abc", min_size=1, max_size=4), st.integers(1, 5), max_size=12), st.integers(1, 6))
def test_named_parts_are_bounded_and_the_sum_stays_the_same(counts: dict[str, int], parts_max: int) -> None:
    made = largest(Counter(counts), parts_max)
    assert sum(made.values()) == sum(counts.values())
    assert len(made) <= parts_max + 1
    rest = {name: count for name, count in made.items() if name != OTHER}
    assert all(counts[name] == count for name, count in rest.items())
    left_out = [count for name, count in counts.items() if name not in rest]
    assert max(left_out, default=0) <= min(rest.values(), default=0) or not left_out


@in_virtual_time
async def test_unreadable_ledgers_and_tasks_are_counted() -> None:
    marks = await Marks.create()
    await marks.ledger(8, A, C)
    await marks.store.set(marks.ledgers.path(LedgerId(8)), b"nonsense", 0)
    await marks.ledgers.create(LedgerId(9), closed_ledger(A, C))
    await create_with_parents(marks.store, task_path(ROOT, 9), b"\xff nonsense", ROOT)
    backlog = await marks.counter.count()
    assert backlog.unreadable == 2
    assert backlog.ledgers == 2


@in_virtual_time
async def test_a_deleted_ledger_needs_no_repair_and_is_not_damage() -> None:
    marks = await Marks.create()
    for missing in ([C], []):
        await marks.tasks.marking.mark(LedgerId(7 + len(missing)), missing)
    backlog = await marks.counter.count()
    assert (backlog.healthy.ledgers, backlog.unreadable, backlog.severities, backlog.ledgers) == (2, 0, {}, 2)


@in_virtual_time
async def test_only_marked_ledgers_are_counted_as_parked_or_locked() -> None:
    marks = await Marks.create()
    for ledger_id in (1, 2, 3):
        await marks.ledger(ledger_id, A, C)
    for ledger_id, reason in ((1, ParkReason.NO_CANDIDATE_BOOKIE), (99, ParkReason.NO_LIVE_COPY)):
        await marks.parked.park(
            ParkedTask(
                ledger_id=LedgerId(ledger_id),
                reason=reason,
                detail="",
                since_ms=0,
                bookies_seen=frozenset(),
                task_version=0,
            )
        )
    await marks.tasks.locks.lock(LedgerId(2), "worker")
    await marks.tasks.locks.lock_unmarked(LedgerId(50), "collector")
    backlog = await marks.counter.count()
    assert backlog.parked == {ParkReason.NO_CANDIDATE_BOOKIE: 1}
    assert backlog.locked == 1
    assert sum(part.ledgers for part in backlog.severities.values()) == 3
    assert sum(part.ledgers for part in backlog.repairable.values()) == 2


@in_virtual_time
async def test_counting_a_long_backlog_does_not_block_the_event_loop() -> None:
    marks = await Marks.create()
    count = 4 * READ_LEDGERS
    ids = [LedgerId(number) for number in range(count)]
    await marks.ledgers.create_many([(ledger_id, closed_ledger(A, B, C)) for ledger_id in ids])
    await marks.tasks.marking.mark_many([(ledger_id, (C,)) for ledger_id in ids])
    counting = asyncio.ensure_future(marks.counter.count())
    turns = 0
    while not counting.done():
        await asyncio.sleep(0)
        turns += 1
    assert (await counting).ledgers == count
    assert turns > count / READ_LEDGERS


def test_bytes_to_copy_are_estimated_from_the_length() -> None:
    live = frozenset({A, B})
    striped = LedgerMetadata(3, 2, 2, (Fragment(EntryId(0), (A, B, C)),)).closed(EntryId(99), 900)
    assert judge(striped, live) == LedgerVerdict(Severity.CRITICAL, 600)
    two = LedgerMetadata(2, 2, 1, (Fragment(EntryId(0), (A, C)), Fragment(EntryId(50), (A, B)))).closed(
        EntryId(99), 1000
    )
    assert judge(two, live) == LedgerVerdict(Severity.CRITICAL, 500)
    assert judge(two, frozenset({A, B, C})) == LedgerVerdict(None, 0)
    opened = LedgerMetadata(2, 2, 1, (Fragment(EntryId(0), (A, C)),))
    assert judge(opened, live) == LedgerVerdict(Severity.CRITICAL, 0)
    empty = LedgerMetadata(2, 2, 1, (Fragment(EntryId(0), (A, C)),)).closed(EntryId(-1), 0)
    assert judge(empty, live) == LedgerVerdict(Severity.METADATA_ONLY, 0)
    elsewhere = LedgerMetadata(3, 2, 1, (Fragment(EntryId(0), (A, B, C)),)).closed(EntryId(0), 100)
    assert judge(elsewhere, live) == LedgerVerdict(Severity.METADATA_ONLY, 0)


class EndlessTasks:
    """So many marked ledgers that a list of them would be large; each page is generated on request."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.locks = self

    async def locked(self) -> frozenset[LedgerId]:
        return frozenset()

    async def page(self, after: LedgerId | None, places_max: int) -> TaskPart:
        first = 0 if after is None else after + 1
        ids = range(first, min(self.count, first + places_max))
        tasks: list[Task | UnreadableTask] = [Task(LedgerId(each), (BookieId("b"),), 1000 + each, 0) for each in ids]
        return TaskPart(tasks, LedgerId(ids[-1]) if ids.stop < self.count else None)


class SameLedgers:
    async def read_many_metadata(self, ids: Sequence[LedgerId]) -> list[LedgerMetadata]:
        return [make_metadata((0, "a b"), quorum=(2, 2), last=9) for _ in ids]


async def peak_bytes(cluster: MemoryCluster, count: int) -> int:
    """Return the peak memory of one count of this many marked ledgers."""
    registrations, parked = Registrations(cluster.store, cluster.cluster), ParkedTasks(cluster.store, ROOT)
    tasks, ledgers = cast(Any, EndlessTasks(count)), cast(Any, SameLedgers())
    counter = BacklogCounter(tasks, ledgers, registrations, parked, cluster.clock)
    tracemalloc.start()
    try:
        counted = await counter.count()
        assert counted.ledgers == count
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@in_virtual_time
async def test_the_memory_for_a_count_does_not_grow_with_the_backlog(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog, "PLACES_AT_ONCE", 100)
    cluster = await MemoryCluster().found()
    await cluster.register(BookieId("a"))
    few = await peak_bytes(cluster, 100)
    assert await peak_bytes(cluster, 5_000) < 1.5 * few
