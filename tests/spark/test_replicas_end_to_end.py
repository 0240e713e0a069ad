"""Entries that vanish unnoticed from a bookie: the replicas check finds them, and a worker repairs them."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from bookie.client.bookkeeper import LedgerOptions
from bookie.client.connect import connect
from bookie.embedded.cluster import EmbeddedBookie, EmbeddedCluster
from bookie.embedded.process import ManagedProcess
from bookie.metadata.runs.check_times import CheckKind, CheckTimes
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import BookieId, LedgerId
from bookie.model.run import RunKind, RunState
from bookie.model.severity import Severity
from bookie.server.joining.directories import CURRENT
from bookie.storage.disks.index_format import pack_entry_key
from bookie.storage.disks.rocks import RocksIndex
from spark_jobs.report.counts import PublishOutcome
from spark_jobs.report.files import FINDINGS, SUMMARY
from spark_jobs.report.summary import Verdict
from spark_jobs.runs.life_cycle import outcome_of
from spark_jobs.runs.port import Phase, ProgressEvent
from spark_jobs.runs.run import AuditResult, run_check
from spark_jobs.settings import AuditSettings
from tests.deadlines import PROGRAM_S, STATE_S
from tests.sessions import LONG_SESSION_S
from tests.worlds.entries import numbered_payload

pytestmark = [pytest.mark.spark, pytest.mark.integration]

ENTRIES = 20


def payload(ledger: int, entry: int) -> bytes:
    return numbered_payload(ledger, entry, 20)


async def write(cluster: EmbeddedCluster, shapes: Sequence[tuple[int, int]]) -> list[LedgerId]:
    ids = []
    async with await connect(cluster.metadata_uri) as client:
        for index, (size, quorum) in enumerate(shapes):
            async with await client.create_ledger(LedgerOptions(size, quorum, quorum)) as writer:
                for entry in range(ENTRIES):
                    await writer.submit(payload(index, entry))
            ids.append(writer.ledger_id)
    return ids


async def forget(bookie: EmbeddedBookie, entries: Sequence[tuple[LedgerId, int]]) -> None:
    """Remove entries from a bookie's index while it is down."""
    await bookie.stop()
    index = await RocksIndex.open(bookie.directory / "ledgers" / CURRENT / "index")
    try:
        keys = [pack_entry_key(*each) for each in entries]
        assert all(value is not None for value in await index.get_many(keys)), "the bookie did not hold the entries"
        await index.write([], keys)
    finally:
        await index.close()
    await bookie.start()


async def marked(cluster: EmbeddedCluster) -> dict[LedgerId, list[BookieId]]:
    async with await connect(cluster.metadata_uri) as client:
        return {task.ledger_id: list(task.missing) for task in await client.ports.tasks.list()}


async def check_time(cluster: EmbeddedCluster) -> int:
    async with await connect(cluster.metadata_uri) as client:
        return await CheckTimes(client.store, client.cluster).read(CheckKind.REPLICAS)


async def repair(cluster: EmbeddedCluster, directory: Path) -> None:
    arguments = [sys.executable, "-m", "replicator", "--metadata-uri", cluster.metadata_uri, "--once"]
    process = ManagedProcess.start("replicator", arguments, log_path=directory / "replicator.log")
    assert await process.wait(STATE_S) == 0, process.log_tail()


async def read_all(cluster: EmbeddedCluster, ids: Sequence[LedgerId]) -> list[list[bytes]]:
    async with await connect(cluster.metadata_uri) as client:
        return [[each.payload async for each in (await client.open_ledger(number)).read_all()] for number in ids]


def fill_at_the_end(spark: SparkSession, settings: AuditSettings) -> AuditResult:
    """Run an audit whose report disk is full when it writes the summary, which is the last file."""

    def fill(event: ProgressEvent) -> None:
        for run in settings.report_dir.glob("2*") if event.phase is Phase.ASK else ():
            if not (run / SUMMARY).exists() and not (run / f".{SUMMARY}.tmp").is_symlink():
                (run / f".{SUMMARY}.tmp").symlink_to("/dev/full")

    return run_check(spark, RunKind.REPLICAS, settings, fill)


def assert_kept_without_room(result: AuditResult, ledgers: set[LedgerId]) -> None:
    """Check that the findings are on the disk, and that the run counts as done, with its counts and the reason."""
    assert not result.summary_path.exists()
    findings = result.summary_path.parent / FINDINGS
    assert {row["ledger_id"] for row in pq.read_table(findings).to_pylist()} == ledgers
    assert "No space left on device" in result.report_problem
    assert f"the findings of this run that were written are in {findings}" in result.report_problem
    outcome = outcome_of(result.summary, result.summary_path, result.report_problem)
    assert (outcome.state, outcome.is_success, sum(outcome.findings.values())) == (RunState.DONE, True, len(ledgers))
    assert result.report_problem in outcome.detail


def test_entries_lost_by_a_bookie_are_found_and_repaired(spark: SparkSession, tmp_path: Path) -> None:
    with asyncio.Runner() as runner:
        started = EmbeddedCluster.start(
            tmp_path / "cluster", bookies=3, is_zookeeper_durable=False, session_timeout_s=LONG_SESSION_S
        )
        cluster = runner.run(started)
        try:
            settings = AuditSettings(cluster.metadata_uri, tmp_path / "reports")

            def check() -> AuditResult:
                return run_check(spark, RunKind.REPLICAS, settings)

            ids = runner.run(write(cluster, [(3, 3)] * 4 + [(3, 2)] * 4))
            before = check()
            assert (before.summary.verdict, before.summary.is_complete) == (Verdict.CLEAN, True)
            assert before.summary.replicas is not None
            assert (before.summary.replicas.ledgers, before.summary.replicas.requests) == (8, 24)
            assert before.summary.replicas.expected == 4 * 3 * ENTRIES + 4 * 2 * ENTRIES

            victim = cluster.bookies[1]
            all_of, one_of = ids[0], ids[1]
            runner.run(forget(victim, [*((all_of, entry) for entry in range(ENTRIES)), (one_of, 7)]))
            assert_kept_without_room(fill_at_the_end(spark, settings), {all_of, one_of})
            assert runner.run(check_time(cluster)) > before.summary.finished_ms, "the run would be repeated"
            assert runner.run(marked(cluster)) == {all_of: [victim.bookie_id], one_of: [victim.bookie_id]}

            found = check()
            assert runner.run(marked(cluster)) == {all_of: [victim.bookie_id], one_of: [victim.bookie_id]}
            assert found.summary.replicas is not None
            assert found.summary.replicas.absent == ENTRIES + 1
            assert [count.severity for count in found.summary.severities] == [Severity.BELOW_ACK_QUORUM]
            table = pq.read_table(found.summary_path.parent / FINDINGS)
            assert table["severity"].unique().to_pylist() == [Severity.BELOW_ACK_QUORUM.label]
            assert (found.summary.is_complete, found.exit_code()) == (True, ExitCode.OK)
            assert runner.run(check_time(cluster)) == found.summary.finished_ms

            runner.run(repair(cluster, tmp_path))
            after = check()
            assert (after.summary.verdict, after.summary.is_complete) == (Verdict.CLEAN, True)
            assert runner.run(marked(cluster)) == {}
            expected = [[payload(index, entry) for entry in range(ENTRIES)] for index in range(len(ids))]
            assert runner.run(read_all(cluster, ids)) == expected
        finally:
            runner.run(cluster.stop())


def accept_loss(cluster: EmbeddedCluster, ledger_id: LedgerId) -> str:
    arguments = ["dead-letters", "accept-loss", str(ledger_id), "--reason", "both disks", "--yes", "-o", "json"]
    command = [sys.executable, "-m", "auditor.cli.main", *arguments, "--metadata-uri", cluster.metadata_uri]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PROGRAM_S)
    assert done.returncode == ExitCode.OK, done.stdout + done.stderr
    return str(json.loads(done.stdout)["ledgers"][0]["outcome"])


@pytest.mark.long
def test_an_accepted_loss_is_reported_until_anything_else_is_lost(spark: SparkSession, tmp_path: Path) -> None:
    with asyncio.Runner() as runner:
        started = EmbeddedCluster.start(
            tmp_path / "cluster", bookies=2, is_zookeeper_durable=False, session_timeout_s=LONG_SESSION_S
        )
        cluster = runner.run(started)
        try:
            settings = AuditSettings(cluster.metadata_uri, tmp_path / "reports")
            (ledger,) = runner.run(write(cluster, [(2, 2)]))
            for bookie in cluster.bookies:
                runner.run(forget(bookie, [(ledger, 7)]))
            assert run_check(spark, RunKind.REPLICAS, settings).summary.verdict is Verdict.LOST
            runner.run(repair(cluster, tmp_path))  # the worker parks the ledger
            assert accept_loss(cluster, ledger) == "accepted"
            after = run_check(spark, RunKind.REPLICAS, settings).summary
            assert (after.verdict, after.published.outcome) == (Verdict.CLEAN, PublishOutcome.NOTHING_TO_PUBLISH)
            assert (after.accepted.ledgers, after.accepted.fragments) == (1, 1)
            assert runner.run(marked(cluster)) == {}
            assert accept_loss(cluster, ledger) == "already_accepted"
            runner.run(forget(cluster.bookies[0], [(ledger, 9)]))
            again = run_check(spark, RunKind.REPLICAS, settings).summary
            assert (again.verdict, again.accepted.ledgers) == (Verdict.LOST, 0)
            assert list(runner.run(marked(cluster))) == [ledger]
        finally:
            runner.run(cluster.stop())
