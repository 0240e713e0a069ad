"""An exporter shows the same as a leading auditor, changes nothing, and shows no outdated values."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from auditor.exporter.exporter import FRESH_S, DetectionEvents, Exporter
from auditor.exporter.settings import ExporterServerSettings, ExporterSettings
from auditor.metrics import definitions as names
from auditor.metrics.cluster_metrics import CLUSTER, exporter_metrics
from auditor.metrics.service_metrics import AuditorMetrics
from auditor.service.watch.backlog import backlog_counter
from auditor.service.watch.overview import Overview
from bookie.metadata.bookies.first_seen_down import FirstSeenDown
from bookie.metadata.bookies.maintenance import MaintenanceWindow, MaintenanceWindows
from bookie.metadata.bookies.marking_policy import MarkingRules
from bookie.metadata.layout import cookie_path
from bookie.metadata.nodes import ensure_path
from bookie.metadata.port import MetadataStore, StoreUnavailableError
from bookie.metadata.runs.election import Election
from bookie.metadata.runs.records import RunLane, Runs
from bookie.metadata.store.memory import MemoryStore
from bookie.model.ids import BookieId, LedgerId
from bookie.model.run import RunCause, RunKind, RunRecord, RunState
from bookie.runtime.configuration.settings import ConfigurationError
from bookie.runtime.tasks import cancel
from bookie.runtime.telemetry.metrics import MetricSet
from tests.worlds.cluster import ROOT, MemoryCluster
from tests.worlds.ledgers import closed_ledger
from tests.worlds.virtual_time import in_virtual_time

A, B, C, D = (BookieId(f"bk{name}:1") for name in "abcd")
SETTINGS = ExporterSettings(metadata_uri="zk://h:2181/ledgers")
DONE = RunRecord("20261120T101500Z-000001", RunKind.BOOKIES, RunCause.COMMAND, "cron", "job/1", RunState.DONE,
                 started_ms=1000, finished_ms=9000, exit_code=0, verdict="clean", ledgers=7)  # fmt: skip


@dataclass
class Watched:
    """A cluster with an exporter."""

    cluster: MemoryCluster
    store: MemoryStore
    metrics: MetricSet
    exporter: Exporter
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, labels)

    def shown(self) -> set[str]:
        """Return the names of the exported cluster metrics."""
        known = {definition.name for definition in CLUSTER}
        return {family.name for family in self.metrics.registry.collect() if family.samples} & known


@contextlib.asynccontextmanager
async def exporting(cluster: MemoryCluster, settings: ExporterSettings = SETTINGS) -> AsyncIterator[Watched]:
    store = cluster.session()
    counter = backlog_counter(store, cluster.cluster, cluster.clock)
    late: list[Exporter] = []
    metrics = exporter_metrics("1", lambda: late[0].status(), cluster.clock)
    exporter = Exporter(settings, "1", store, cluster.cluster, counter, cluster.clock, DetectionEvents(metrics))
    late.append(exporter)
    watched = Watched(cluster, store, metrics, exporter)
    running = asyncio.ensure_future(exporter.run(watched.stop))
    try:
        yield watched
    finally:
        watched.stop.set()
        await cancel(running)


async def marked(cluster: MemoryCluster, ledger_id: int, *members: BookieId, missing: tuple[BookieId, ...]) -> None:
    await cluster.ledgers.create(LedgerId(ledger_id), closed_ledger(*members))
    await cluster.tasks.marking.mark(LedgerId(ledger_id), missing)


@in_virtual_time
async def test_the_cluster_is_exported_under_the_metric_names_of_a_leader() -> None:
    cluster = await MemoryCluster().found()
    await cluster.register(A)
    await cluster.register(B, is_read_only=True)
    await marked(cluster, 1, A, B, C, missing=(C,))
    await marked(cluster, 2, A, B, missing=())
    runs = Runs(cluster.store, ROOT)
    await runs.write(DONE)
    await runs.note_success(RunKind.BOOKIES, 9000, 9000)
    async with exporting(cluster) as watched:
        await asyncio.sleep(1)
        assert watched.shown() == {definition.name for definition in CLUSTER} - {names.LAST_NAMESPACES}
        assert [watched.value(names.BOOKIES, state=state) for state in names.BOOKIE_STATES] == [1, 1, 0]
        assert watched.value(names.MARKED_LEDGERS, severity="below_write_quorum") == 1
        assert watched.value(names.REPAIRABLE_LEDGERS, severity="below_write_quorum") == 1
        assert watched.value(names.REPAIRABLE_BYTES, severity="below_write_quorum") == 1000
        assert watched.value(names.REPAIRABLE_LEDGERS, severity="misplaced") == 1
        assert watched.value(names.LAST_SUCCESS, kind="bookies") == 9
        assert watched.value(names.LAST_LEDGERS, kind="bookies") == 7
        assert watched.value(names.RECOVERY_ENABLED) == 1
        assert watched.value(names.BRAKE_HELD) == 0


@in_virtual_time
async def test_an_auditors_own_metrics_are_not_exported() -> None:
    cluster = await MemoryCluster().found()
    await cluster.register(A)
    async with exporting(cluster) as watched:
        await asyncio.sleep(1)
        shown = {family.name for family in watched.metrics.registry.collect()}
        assert not {names.LEADER, names.OTHER_AUDITOR_LEADS, names.PERIOD, names.REFUSED} & shown
        component = {"component": "exporter", "version": "1"}
        assert watched.metrics.registry.get_sample_value("bkheal_build_info", component) == 1


@in_virtual_time
async def test_the_exporter_changes_nothing_and_is_not_part_of_the_election() -> None:
    cluster = await MemoryCluster().found()
    await cluster.register(A)
    await marked(cluster, 1, A, B, missing=(B,))
    before = await everything(cluster.store)
    async with exporting(cluster) as watched:
        await asyncio.sleep(600)
        assert await everything(cluster.store) == before
        election = Election(cluster.store, ROOT, "auditor-1", cluster.clock, session_timeout_s=10)
        running = asyncio.ensure_future(election.run())
        state = await election.wait_changed(election.state)
        assert state.is_leader
        assert watched.value(names.BOOKIES, state="writable") == 1
        await cancel(running)


async def everything(store: MetadataStore, path: str = "/") -> dict[str, tuple[bytes, int]]:
    """Return the data and the version of every node."""
    node = await store.get(path)
    found = {path: (node.data, node.stat.version)}
    for name in (await store.children(path)).names:
        found |= await everything(store, f"{path.rstrip('/')}/{name}")
    return found


@in_virtual_time
async def test_nothing_is_exported_before_the_cluster_was_read() -> None:
    cluster = await MemoryCluster().found()
    async with exporting(cluster) as watched:
        assert watched.shown() == set()
        assert watched.exporter.status() is None


@in_virtual_time
async def test_nothing_is_exported_before_the_runs_were_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_answer(*_: object) -> list[RunRecord]:
        raise StoreUnavailableError("no answer")

    cluster = await MemoryCluster().found()
    await cluster.register(A)
    with monkeypatch.context() as patched:
        patched.setattr(Runs, "list", no_answer)
        async with exporting(cluster) as watched:
            await asyncio.sleep(FRESH_S / 2)
            assert watched.shown() == set()
            patched.undo()
            await asyncio.sleep(FRESH_S / 2)
            assert watched.value(names.BOOKIES, state="writable") == 1


@in_virtual_time
async def test_a_task_that_fails_with_a_bug_ends_the_exporter(monkeypatch: pytest.MonkeyPatch) -> None:
    async def defect(_: Overview) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(Overview, "run", defect)
    cluster = await MemoryCluster().found()
    async with exporting(cluster) as watched:
        with pytest.raises(RuntimeError, match="a defect"):
            await watched.exporter.run(watched.stop)


@in_virtual_time
async def test_outdated_metrics_disappear_and_return_with_the_store() -> None:
    cluster = await MemoryCluster().found()
    await cluster.register(A)
    async with exporting(cluster) as watched:
        await asyncio.sleep(1)
        watched.store.suspend()
        await asyncio.sleep(FRESH_S / 2)
        assert watched.value(names.BOOKIES, state="writable") == 1
        await asyncio.sleep(FRESH_S)
        assert watched.shown() == set()
        watched.store.resume()
        await asyncio.sleep(FRESH_S / 2)
        assert watched.value(names.BOOKIES, state="writable") == 1


@in_virtual_time
async def test_a_run_of_a_dead_process_is_not_shown_as_running() -> None:
    cluster = await MemoryCluster().found()
    await cluster.register(A)
    job = cluster.session()
    runs = Runs(job, ROOT)
    lease = await runs.acquire(RunLane(RunKind.BOOKIES), DONE.run_id, "job/1")
    await runs.write(RunRecord(DONE.run_id, RunKind.BOOKIES, RunCause.COMMAND, "cron", "job/1", RunState.RUNNING))
    async with exporting(cluster) as watched:
        await asyncio.sleep(1)
        assert watched.value(names.RUNNING, kind="bookies") == 1
        await runs.release(lease)
        await asyncio.sleep(60)
        assert watched.value(names.RUNNING, kind="bookies") == 0


@in_virtual_time
async def test_failed_runs_of_cronjobs_are_counted_until_one_succeeds() -> None:
    cluster = await MemoryCluster().found()
    await cluster.register(A)
    runs = Runs(cluster.store, ROOT)
    failed = replace(DONE, state=RunState.FAILED, verdict="", exit_code=70)
    partial = replace(DONE, verdict="incomplete", exit_code=5)
    records = (
        failed,
        DONE,
        failed,
        replace(DONE, is_dry_run=True),
        replace(DONE, state=RunState.CANCELLED),
        partial,
        replace(failed, kind=RunKind.REPLICAS),
    )
    async with exporting(cluster) as watched:
        counts = []
        for number, record in enumerate(records):
            await runs.write(replace(record, run_id=f"20261120T10150{number}Z-000001"))
            await asyncio.sleep(SETTINGS.backlog_interval_s + 1)
            counts.append(watched.value(names.FAILED_IN_A_ROW, kind="bookies"))
        assert counts == [1, 0, 1, 1, 1, 2, 2]
        assert watched.value(names.FAILED_IN_A_ROW, kind="replicas") == 1


@in_virtual_time
async def test_detection_times_from_audits_of_other_processes_are_counted_once_per_loss() -> None:
    cluster = await MemoryCluster().found()
    await cluster.register(A)
    for bookie in (B, C, D):
        await ensure_path(cluster.store, cookie_path(ROOT, bookie))
    down, now_ms = FirstSeenDown(cluster.store, ROOT), cluster.clock.epoch_ms
    began_ms = now_ms() - 600_000
    await down.reconcile(frozenset({B, C, D}), began_ms, registered=set())
    await down.note_audited(B, began_ms, now_ms())
    async with exporting(cluster) as watched:

        async def counted() -> tuple[float | None, float | None]:
            await asyncio.sleep(FRESH_S)
            return watched.value(f"{names.TIME_TO_DETECT}_count"), watched.value(f"{names.TIME_TO_DETECT}_sum")

        assert await counted() == (0, 0), "the loss of B was audited before the exporter started"
        await down.note_audited(C, began_ms, began_ms + 700_000)
        assert await counted() == (1, 700)
        await down.reopen(C, began_ms)
        assert await counted() == (1, 700)
        await down.note_audited(C, began_ms, began_ms + 900_000)
        assert await counted() == (1, 700), "a leader requested another audit of the same loss"
        await down.reconcile(frozenset({B, D}), now_ms(), registered=set())
        await counted()
        await down.reconcile(frozenset({B, C, D}), again_ms := now_ms(), registered=set())
        await down.note_audited(C, again_ms, again_ms + 5000)
        assert await counted() == (2, 705)


@in_virtual_time
async def test_a_loss_that_apaches_auditor_marks_is_measured_and_no_longer_held_back() -> None:
    cluster = await MemoryCluster().found()
    await cluster.register(A, B, C)
    for bookie in (B, C):
        await ensure_path(cluster.store, cookie_path(ROOT, bookie))
    await cluster.tasks.switches.set_lost_bookie_delay_s(3600)
    async with exporting(cluster, replace(SETTINGS, missing_share_max=1)) as watched:

        async def shown() -> tuple[float | None, float | None, float | None]:
            await asyncio.sleep(FRESH_S)
            held = watched.value(names.HELD_BACK_BOOKIES, reason="delay")
            count = watched.value(f"{names.TIME_TO_DETECT}_count")
            return held, count, watched.value(f"{names.TIME_TO_DETECT}_sum")

        assert await shown() == (0, 0, 0)
        await cluster.unregister(B, C)
        assert await shown() == (2, 0, 0)
        await asyncio.sleep(600 - FRESH_S)
        await marked(cluster, 1, A, B, missing=(B,))
        held, count, seconds = await shown()
        assert (held, count) == (1, 1)
        assert seconds == pytest.approx(600, abs=1)
        await asyncio.sleep(3600)
        assert await shown() == (0, 1, seconds), "a bookie without ledgers is not held back for ever"


@in_virtual_time
async def test_delay_windows_and_held_back_bookies_are_exported_as_by_a_leader() -> None:
    cluster = await MemoryCluster().found()
    await cluster.register(A)
    await cluster.register(B)
    now_ms = cluster.clock.epoch_ms()
    for bookie in (C, D):
        await ensure_path(cluster.store, cookie_path(ROOT, bookie))
    await cluster.tasks.switches.set_lost_bookie_delay_s(600)
    await FirstSeenDown(cluster.store, ROOT).reconcile(frozenset({C, D}), now_ms, registered=set())
    window = MaintenanceWindow(D, (D,), "me", now_ms, now_ms + 3_600_000)
    await MaintenanceWindows(cluster.store, ROOT).start(window)
    run = replace(DONE, held_back={"limit": 5}, withdrawn={"ledger_deleted": 2})
    await Runs(cluster.store, ROOT).write(run)
    async with exporting(cluster, replace(SETTINGS, missing_share_max=1)) as watched:
        await asyncio.sleep(1)
        status = watched.exporter.status()
        assert status is not None
        shown = AuditorMetrics("1", cluster.clock)
        shown.show(replace(status, is_leader=True))
        for definition in CLUSTER:
            for labels in definition.combinations():
                expected = shown.registry.get_sample_value(definition.name, labels)
                assert watched.value(definition.name, **labels) == expected, (definition.name, labels)
        assert watched.value(names.LOST_BOOKIE_DELAY) == 600
        assert watched.value(names.HELD_BACK_BOOKIES, reason="delay") == 1
        assert watched.value(names.HELD_BACK_BOOKIES, reason="maintenance") == 1
        assert watched.value(names.WINDOWS) == 1
        assert watched.value(names.WINDOWS_END) == window.until_ms / 1000
        assert watched.value(names.LAST_HELD_BACK, kind="bookies", reason="limit") == 5
        assert watched.value(names.LAST_WITHDRAWN, kind="bookies", reason="ledger_deleted") == 2


def test_all_wrong_settings_are_reported_together() -> None:
    with pytest.raises(ConfigurationError) as raised:
        ExporterSettings(
            metadata_uri="",
            missing_share_max=2,
            topology_file=Path("/" + "n" * 300),
            http=ExporterServerSettings(port=70_000),
        )
    assert len(raised.value.problems) == 4


@in_virtual_time
async def test_held_back_bookies_follow_the_same_options_as_audits() -> None:
    """Without the options of the audits, an exporter would show the reasons and times of the default options."""
    cluster = await MemoryCluster().found()
    await cluster.register(A)
    await cluster.register(B)
    await ensure_path(cluster.store, cookie_path(ROOT, C))
    await cluster.tasks.switches.set_lost_bookie_delay_s(600)
    await FirstSeenDown(cluster.store, ROOT).reconcile(frozenset({C}), cluster.clock.epoch_ms(), registered=set())
    due: list[int] = []
    for critical_delay_s in (ExporterSettings(metadata_uri="zk://h:2181/ledgers").critical_delay_s, 42.0):
        settings = replace(SETTINGS, critical_delay_s=critical_delay_s)
        async with exporting(cluster, settings) as watched:
            await asyncio.sleep(1)
            status = watched.exporter.status()
            assert status is not None
            (lost,) = status.lost
            due.append(lost.critical_due_ms - lost.first_seen_down_ms)
    assert due == [300_000, 42_000]
    delays = replace(SETTINGS, critical_delay_s=1, rack_outage_delay_s=2, flapping_delay_s=3)
    assert delays.marking_rules == MarkingRules(1, 2, 3, None)


@in_virtual_time
@pytest.mark.parametrize(("share", "is_held"), [(0.3, 1), (0.4, 0)])
async def test_the_brake_follows_the_same_share_as_audits(share: float, is_held: int) -> None:
    cluster = await MemoryCluster().found()
    await cluster.register(A)
    await cluster.register(B)
    await ensure_path(cluster.store, cookie_path(ROOT, C))
    async with exporting(cluster, replace(SETTINGS, missing_share_max=share)) as watched:
        await asyncio.sleep(1)
        assert watched.value(names.BRAKE_HELD) == is_held
