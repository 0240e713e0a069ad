"""A bit flips on the disk of a killed bookie: in an entry, in the index, in the identity files.

A flipped bit must not produce an entry that was never stored, and no reader may receive it.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from bookie.client.errors import RecoveryNotPossibleError
from bookie.embedded.cluster import EmbeddedBookie
from bookie.embedded.process import EmbeddedProcessError, ManagedProcess
from bookie.model.exit_codes import ExitCode
from bookie.model.exit_codes import ExitCode as AuditExitCode
from bookie.model.ids import EntryId, LedgerId
from bookie.model.metadata import LedgerState
from bookie.model.run import RunKind
from bookie.server.joining.directories import CURRENT
from bookie.wire.port import Status
from bookie.wire.requests import ListEntries, Read
from spark_jobs.report.files import FINDINGS
from spark_jobs.runs.run import AuditResult, run_check
from spark_jobs.settings import AuditSettings
from tests.deadlines import PROGRAM_S, STATE_S
from tests.integration.damaged_world import (
    ENTRIES,
    EmbeddedWorld,
    current,
    damage_entry,
    flip,
    forget_entry,
    inside_a_record,
    payload,
)

pytestmark = pytest.mark.integration

DAMAGED = EntryId(10)
FORGOTTEN = (EntryId(10), EntryId(11))
NO_LEDGER = LedgerId(-1)
INDEXED = 1000
"""Number of entries with keys on many pages of the index."""
INDEXED_STEP = 20
"""A page has about a hundred keys."""
WHOSE = ("VERSION", "incarnation")
"""The identity files of a directory."""


@dataclass
class Damaged(EmbeddedWorld):
    """Bookies 0 and 1 have a flipped bit in an entry of each of three ledgers. Bookie 2 has no damage."""

    unclosed: LedgerId = NO_LEDGER
    closed: LedgerId = NO_LEDGER
    short: LedgerId = NO_LEDGER
    """Bookie 2 lacks two entries. Bookie 0 has a damaged copy of the first, and bookie 1 of the second."""
    met: LedgerId = NO_LEDGER
    """Bookie 0 has a damaged copy."""
    indexed: LedgerId = NO_LEDGER

    async def damage(self) -> None:
        self.unclosed = await self.abandoned()
        self.closed = await self.written()
        self.short = await self.written()
        self.met = await self.written()
        self.indexed = await self.written(entries=INDEXED)
        first, second, third = self.bookies
        for bookie in self.bookies:
            bookie.options = ("--scrub-interval", "0")  # the first scrub, after a minute, would repair the damage
        await self.settle(first, second, third)
        for bookie in (first, second):
            damage_entry(bookie, self.unclosed, DAMAGED)
            damage_entry(bookie, self.closed, DAMAGED)
        damage_entry(first, self.met, DAMAGED)
        for bookie, entry in zip((first, second), FORGOTTEN, strict=True):
            damage_entry(bookie, self.short, entry)
            await forget_entry(third, self.short, entry)
        await self.start_again(first, second, third)

    def check(self, spark: SparkSession, ledger_id: LedgerId) -> AuditResult:
        """Run the replicas check of one ledger."""
        settings = AuditSettings(
            self.cluster.metadata_uri,
            self.cluster.directory / "reports",
            ledger_min=ledger_id,
            ledger_max=ledger_id,
        )
        return run_check(spark, RunKind.REPLICAS, settings)

    def repair(self) -> Path:
        """Repair the marked ledgers in a process, and return its log."""
        log = self.cluster.directory / f"replicator-{len(list(self.cluster.directory.glob('replicator-*')))}.log"
        words = ["--metadata-uri", self.cluster.metadata_uri, "--once", "--poll-interval", "0.2", "--output", "json"]
        replicator = ManagedProcess.start("replicator", [sys.executable, "-m", "replicator", *words], log_path=log)
        assert self.do(replicator.wait(PROGRAM_S)) == 0, replicator.log_tail()
        return log

    async def marked(self) -> set[LedgerId]:
        return {task.ledger_id for task in await self.client.ports.tasks.list()}

    async def listed(self, bookie: EmbeddedBookie, ledger_id: LedgerId) -> tuple[Status, list[EntryId]]:
        reply = await self.client.ports.transport.ask(bookie.bookie_id, ListEntries(ledger_id), STATE_S)
        return reply.status, list(reply.entries)

    async def statuses(
        self, bookie: EmbeddedBookie, ledger_id: LedgerId, entry: int
    ) -> tuple[Status, tuple[Status, ...]]:
        """Return a bookie's answer for an entry: the status of the request, and of the entry if there is one."""
        reply = await self.client.ports.transport.ask(bookie.bookie_id, Read(ledger_id, [EntryId(entry)]), STATE_S)
        return reply.status, tuple(result.status for result in reply.results)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Damaged]:
    with asyncio.Runner() as runner:
        world = runner.run(Damaged.start(tmp_path_factory.mktemp("damaged"), runner))
        try:
            runner.run(world.damage())
            yield world
        finally:
            runner.run(world.stop())


def test_a_damaged_copy_is_not_proof_of_absence_in_a_recovery(world: Damaged) -> None:
    first, second, third = world.bookies
    world.do(world.kill(third))
    try:
        with pytest.raises(RecoveryNotPossibleError, match=f"entry {DAMAGED} ") as refused:
            world.do(world.client.recover_ledger(world.unclosed))
        metadata = world.do(world.client.ports.ledgers.read(world.unclosed)).metadata
    finally:
        world.do(world.start_again(third))
    reported = {bookie: status for bookie, status in refused.value.evidence.items() if bookie != third.bookie_id}
    assert reported == {first.bookie_id: Status.CORRUPT, second.bookie_id: Status.CORRUPT}
    assert metadata.state is LedgerState.IN_RECOVERY
    metadata = world.do(world.client.recover_ledger(world.unclosed))
    assert (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, ENTRIES - 1)
    assert world.do(world.read(world.unclosed)) == [payload(world.unclosed, entry) for entry in range(ENTRIES)]


def test_readers_get_the_entry_from_the_bookie_whose_copy_is_intact(world: Damaged) -> None:
    assert [world.do(world.statuses(bookie, world.closed, DAMAGED)) for bookie in world.bookies] == [
        (Status.OK, (Status.CORRUPT,)),
        (Status.OK, (Status.CORRUPT,)),
        (Status.OK, (Status.OK,)),
    ]
    assert world.do(world.read(world.closed)) == [payload(world.closed, entry) for entry in range(ENTRIES)]


def test_a_damaged_entry_found_by_a_read_is_a_finding_and_is_repaired_in_place(
    spark: SparkSession, world: Damaged
) -> None:
    """A bookie leaves an entry out of its lists after a read or a scrub has found it damaged."""
    first = world.bookies[0]
    assert world.do(world.listed(first, world.met)) == (Status.OK, [*range(ENTRIES)]), (
        "the damage is already known, although no request has read the entry"
    )
    assert world.do(world.statuses(first, world.met, DAMAGED)) == (Status.OK, (Status.CORRUPT,))
    rest = [entry for entry in range(ENTRIES) if entry != DAMAGED]
    assert world.do(world.listed(first, world.met)) == (Status.CORRUPT, rest)

    result = world.check(spark, world.met)
    assert (result.summary.is_complete, result.summary.problems) == (True, ())
    [finding] = pq.read_table(result.summary_path.parent / FINDINGS).to_pylist()
    assert (finding["kind"], list(finding["missing"])) == ("DAMAGED_ENTRIES", [first.bookie_id])
    assert finding["detail"].endswith(f"has damaged copies of 1 of {ENTRIES} entries, the first is {DAMAGED}")
    assert world.met in world.do(world.marked())

    world.repair()
    assert world.met not in world.do(world.marked())
    assert world.do(world.statuses(first, world.met, DAMAGED)) == (Status.OK, (Status.OK,))
    assert world.do(world.listed(first, world.met)) == (Status.OK, [*range(ENTRIES)])
    assert world.do(world.client.ports.ledgers.read(world.met)).metadata.members() == {
        each.bookie_id for each in world.bookies
    }


def test_a_repair_skips_a_damaged_copy_reports_it_and_replaces_it(world: Damaged) -> None:
    first, second, third = world.bookies
    tasks, ledger_id = world.client.ports.tasks, world.short
    for entry in FORGOTTEN:
        assert world.do(world.statuses(third, ledger_id, entry)) == (Status.OK, (Status.NO_ENTRY,))
    world.do(tasks.initialize())
    world.do(tasks.marking.mark(ledger_id, [third.bookie_id]))
    log = world.repair()
    assert ledger_id not in world.do(world.marked())
    for entry in FORGOTTEN:
        assert world.do(world.statuses(third, ledger_id, entry)) == (Status.OK, (Status.OK,))
    assert world.do(world.read(ledger_id)) == [payload(ledger_id, entry) for entry in range(ENTRIES)]
    events = [json.loads(line) for line in log.read_text().splitlines() if line.startswith('{"event": "copy_corrupt"')]
    # One holder receives the first request for both entries, and each holder has a damaged copy of one of them.
    damaged = dict(zip((first.bookie_id, second.bookie_id), FORGOTTEN, strict=True))
    [event] = events
    assert event["ledger_id"] == ledger_id
    assert event["entry_id"] == damaged[event["bookie_id"]]
    holder = next(bookie for bookie in (first, second) if bookie.bookie_id == event["bookie_id"])
    assert world.do(world.statuses(holder, ledger_id, event["entry_id"])) == (Status.OK, (Status.OK,))
    world.do(world.kill(holder))
    world.do(world.start_again(holder))
    assert world.do(world.statuses(holder, ledger_id, event["entry_id"])) == (Status.OK, (Status.OK,)), (
        "the repaired copy was not on the disk"
    )


def test_a_damaged_page_of_the_index_makes_no_entry_look_absent(spark: SparkSession, world: Damaged) -> None:
    third = world.bookies[2]
    world.do(world.kill(third))
    world.do(world.start_again(third))  # the restart converts the log of the index to a table
    world.do(world.kill(third))
    table = max((current(third) / "index").glob("*.sst"), key=lambda path: path.stat().st_size)
    place = table.stat().st_size // 2
    flip(table, place)
    world.do(world.start_again(third))
    try:
        reported = {world.do(world.statuses(third, world.indexed, entry)) for entry in range(0, INDEXED, INDEXED_STEP)}
        assert reported == {(Status.OK, (Status.OK,)), (Status.IO_ERROR, ())}
        assert world.do(world.read(world.indexed)) == [payload(world.indexed, entry) for entry in range(INDEXED)]
        result = world.check(spark, world.indexed)
        assert (result.summary.is_complete, result.exit_code()) == (False, AuditExitCode.PARTIAL)
        assert f"{third.bookie_id} for 1 ledger (IO_ERROR" in result.summary.problems[0]
        assert world.indexed not in world.do(world.marked())
    finally:
        world.do(world.kill(third))
        flip(table, place)
        world.do(world.start_again(third))


def test_a_bookie_does_not_start_on_directories_with_unreadable_identity_files(world: Damaged) -> None:
    second = world.bookies[1]
    world.do(world.kill(second))
    for directory in ("journal", "ledgers"):
        for name in WHOSE:
            path = second.directory / directory / CURRENT / name
            place = path.stat().st_size // 2
            flip(path, place)
            assert world.do(refused(second)) == ExitCode.CONFIGURATION, path
            flip(path, place)
    world.do(world.start_again(second))
    assert world.do(world.statuses(second, world.indexed, 0)) == (Status.OK, (Status.OK,))


def test_a_bookie_does_not_start_on_an_index_that_lost_durable_records(world: Damaged, tmp_path: Path) -> None:
    second = world.bookies[1]
    ledger_id = world.do(world.written())
    world.do(world.settle(second))
    index = current(second) / "index"
    shutil.copytree(index, tmp_path / "index")
    [log] = index.glob("*.log")
    flip(log, inside_a_record(log.read_bytes()))
    assert world.do(refused(second)) == ExitCode.STORAGE_FAILED
    assert world.do(refused(second)) == ExitCode.STORAGE_FAILED, "the second start is not refused"
    shutil.rmtree(index)
    shutil.copytree(tmp_path / "index", index)
    world.do(world.start_again(second))
    assert world.do(world.statuses(second, ledger_id, DAMAGED)) == (Status.OK, (Status.OK,))


def test_a_damaged_journal_is_salvaged_and_its_lost_entries_are_copied_back(world: Damaged) -> None:
    second = world.bookies[1]
    unclosed = world.do(world.abandoned())
    closed = world.do(world.written())
    world.do(world.kill(second))
    wanted = payload(unclosed, DAMAGED)
    journals = sorted((second.directory / "journal" / CURRENT / "journal").glob("*.journal"))
    [(path, place)] = [(path, at) for path in journals if (at := path.read_bytes().find(wanted)) >= 0]
    flip(path, place)
    assert world.do(refused(second)) == ExitCode.STORAGE_FAILED
    assert "bkheal bookie salvage-journal" in second.running.log_tail()
    places = ["--journal-dir", str(second.directory / "journal"), "--ledger-dir", str(second.directory / "ledgers")]
    command = [sys.executable, "-m", "auditor.cli.main", "bookie", "salvage-journal", *places, "--output", "json"]
    ended = subprocess.run(command, capture_output=True, check=True, timeout=PROGRAM_S)
    assert json.loads(ended.stdout)["finding_count"] == 1
    world.do(world.start_again(second))
    assert world.do(world.statuses(second, unclosed, DAMAGED)) == (Status.OK, (Status.LIMBO,))
    assert world.do(world.read(closed)) == [payload(closed, entry) for entry in range(ENTRIES)]
    assert {unclosed, closed} <= world.do(world.marked())
    log = world.cluster.directory / "replicator-after-salvage.log"
    words = [
        "--metadata-uri",
        world.cluster.metadata_uri,
        "--once",
        "--poll-interval",
        "0.2",
        "--open-ledger-grace",
        "0",
    ]
    replicator = ManagedProcess.start("replicator", [sys.executable, "-m", "replicator", *words], log_path=log)
    assert world.do(replicator.wait(PROGRAM_S)) == 0, replicator.log_tail()
    for ledger_id in (unclosed, closed):
        for entry in range(ENTRIES):
            assert world.do(world.statuses(second, ledger_id, entry)) == (Status.OK, (Status.OK,))
    metadata = world.do(world.client.recover_ledger(unclosed))
    assert (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, ENTRIES - 1)
    assert world.do(world.read(unclosed)) == [payload(unclosed, entry) for entry in range(ENTRIES)]


async def refused(bookie: EmbeddedBookie) -> int | None:
    """Start a bookie that must refuse to start, and return its exit code."""
    bookie.launch()
    with pytest.raises(EmbeddedProcessError, match="ended with exit code"):
        await bookie.wait_ready()
    return bookie.running.exit_code
