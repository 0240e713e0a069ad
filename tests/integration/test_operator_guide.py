"""The operator guide (docs/operator-guide.md) on real processes, with kills, restarts and outages."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from bookie.metadata.ledgers.ledgers import Versioned
from bookie.model.ids import BookieId, LedgerId
from bookie.model.run import RunCause, RunKind, RunRecord, RunState
from bookie.model.times import rfc3339_if_known
from bookie.runtime.clock import SystemClock
from bookie.runtime.ports import free_loopback_port
from spark_jobs.report.files import PAGE
from spark_jobs.report.summary import Verdict
from tests.chart.rule_files import find_program
from tests.integration.auditors import when
from tests.integration.command_process import CommandProcess
from tests.integration.guide_world import LONG_DELAY_S, Site, site_in
from tests.integration.prometheus import Prometheus, launch_exporter

pytestmark = [
    pytest.mark.integration,
    pytest.mark.spark,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.usefixtures("quick_spark"),
]

SHORT_DELAY_S = 2


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory, command_process: CommandProcess) -> AsyncIterator[Site]:
    async with site_in(tmp_path_factory.mktemp("site"), command_process) as made:
        yield made


def assert_complete(run: RunRecord, verdict: Verdict) -> None:
    assert (run.state, run.verdict) == (RunState.DONE, verdict.value), run
    assert (Path(run.report).parent / PAGE).is_file()


async def assert_repaired(site: Site, lost: BookieId, old: Mapping[LedgerId, Versioned]) -> set[LedgerId]:
    """Wait for the repair. The ledgers of the lost bookie have all copies again; no other ledger has changed."""
    await when(site.is_repaired)
    await site.prove(lost)
    now = await site.metadata()
    changed = {ledger_id for ledger_id, found in now.items() if found != old[ledger_id]}
    assert changed == {ledger_id for ledger_id, found in old.items() if lost in found.metadata.members()}
    assert changed
    return changed


async def test_a_killed_bookie_is_detected_at_once_repaired_and_shown_in_reports_and_metrics(site: Site) -> None:
    await site.whole(delay_s=SHORT_DELAY_S)
    leader = site.auditors[await site.leader()]
    before = await site.published()
    await site.press(RunKind.BOOKIES)
    clean = await site.run_after(before, RunKind.BOOKIES, RunCause.SPARK_UI)
    assert_complete(clean, Verdict.CLEAN)
    assert clean.owner.startswith("anonymous from 127.0.0.1")

    before, old = await site.published(), await site.metadata()
    victim = site.cluster.bookies[0].bookie_id
    counted = await Counted.of(site, victim)
    detected_before = (await leader.served.values())["bkheal_time_to_detect_seconds_count",]
    await site.kill9(site.cluster.bookies[0])
    run = await site.run_after(before, RunKind.BOOKIES, RunCause.BOOKIE_LOSS)
    assert_complete(run, Verdict.UNDER_REPLICATED)
    assert {row["next_run"] for row in (await leader.status())["checks"].values()} == {None}  # no schedule

    lost = await assert_repaired(site, victim, old)
    assert (run.owner, run.tasks_changed, sum(run.findings.values())) == (victim, len(lost), len(lost))
    shown = await site.bkheal("status")
    assert (shown["bookies"]["lost"], shown["underreplicated"]["ledgers"]) == ([victim], 0)
    assert (await site.bkheal("underreplicated", "list"))["items"] == []
    audits = (await site.bkheal("audit", "list"))["items"]
    assert [item["cause"] for item in audits[:2]] == ["bookie loss", "spark ui"]
    await until_metrics_show(site, victim, counted, len(lost))
    await leader.served.until_value(detected_before + 1, "bkheal_time_to_detect_seconds_count")
    assert (await leader.served.values())["bkheal_time_to_detect_seconds_count",] == detected_before + 1

    listed = [item["run_id"] for item in (await site.report("list"))["items"]]
    assert listed[:2] == [run.run_id, clean.run_id]
    shown = await site.report("show")
    assert (shown["run_id"], shown["published"]["ledgers"]) == (run.run_id, len(lost))
    assert (await leader.get(f"/reports/{run.run_id}/"))[0] == 200
    changes = await site.report("diff")
    assert (changes["old"], changes["new"], changes["bookies"]["lost"]) == (clean.run_id, run.run_id, [victim])

    before = await site.published()
    await site.press(RunKind.REPLICAS)
    assert_complete(await site.run_after(before, RunKind.REPLICAS, RunCause.SPARK_UI), Verdict.CLEAN)
    assert (await site.published()).tree_version == before.tree_version


@dataclass(frozen=True, slots=True)
class Counted:
    """The counts in the metrics of replicators and bookies since their start."""

    repaired_ledgers: float
    copied_entries: float
    added_entries: float

    @classmethod
    async def of(cls, site: Site, victim: BookieId) -> Counted:
        replicators = [await served.values() for served in site.replicators.values()]
        bookies = [await served.values() for bookie, served in site.bookies().items() if bookie != victim]
        return cls(
            sum(values["bkheal_replicator_tasks_total", "repaired"] for values in replicators),
            sum(values["bkheal_replicator_copied_entries_total",] for values in replicators),
            sum(values["bkheal_bookie_added_entries_total",] for values in bookies),
        )


async def until_metrics_show(site: Site, victim: BookieId, before: Counted, ledgers: int) -> None:
    """Wait for the expected metrics.

    Replicators count the copies stored by bookies, the leader reports one lost bookie and no mark, and all have a
    session.
    """

    async def is_counted() -> bool:
        now = await Counted.of(site, victim)
        return now.repaired_ledgers - before.repaired_ledgers >= ledgers

    await when(is_counted)
    now = await Counted.of(site, victim)
    assert now.added_entries - before.added_entries >= now.copied_entries - before.copied_entries > 0
    leader = await site.leader()

    async def is_shown() -> bool:
        values = await site.auditors[leader].served.values()
        marked = [value for key, value in values.items() if key[0] == "bkheal_underreplicated_ledgers"]
        return bool(marked) and not any(marked) and values["bkheal_bookies", "lost"] == 1

    await when(is_shown)
    leading = [(await auditor.served.values())["bkheal_auditor_leader",] for auditor in site.auditors.values()]
    assert sorted(leading) == [0, 1]
    for served in site.everything():
        if served.process.is_running:
            await served.until_value(1, "bkheal_zookeeper_session_connected")


async def test_a_paused_run_does_not_delay_the_reaction_to_a_lost_bookie(site: Site) -> None:
    await site.whole(delay_s=SHORT_DELAY_S)
    leader, old = site.auditors[await site.leader()], await site.metadata()
    await site.reported("audit", "pause", "--kind", "bookies", "--for", "1h")
    run_id = (await leader.served.send("POST", "/api/v1/runs", {"kind": "bookies"}))["run"]["run_id"]
    await leader.served.send("PUT", f"/api/v1/runs/{run_id}/state/paused")  # at once, as a run takes less than 1 s
    before = await site.published()
    assert (await site.run(run_id)).state is RunState.PAUSED

    victim = site.cluster.bookies[1].bookie_id
    await site.kill9(site.cluster.bookies[1])
    run = await site.run_after(before, RunKind.BOOKIES, RunCause.BOOKIE_LOSS)
    assert_complete(run, Verdict.UNDER_REPLICATED)
    assert (await site.run(run_id)).state is RunState.CANCELLED
    await assert_repaired(site, victim, old)
    await site.reported("audit", "resume", "--kind", "bookies")


async def test_a_maintenance_window_holds_marks_back_until_it_is_ended(site: Site) -> None:
    await site.whole(delay_s=SHORT_DELAY_S)
    before, old = await site.published(), await site.metadata()
    leader, victim = site.auditors[await site.leader()], site.cluster.bookies[2].bookie_id
    await site.asked("maintenance", "start", victim, "--for", "2h", "--hold-critical")
    try:
        await site.kill9(site.cluster.bookies[2])
        since = (await site.until_down(victim))[victim]

        async def is_held_back_although_the_delay_has_passed() -> bool:
            metrics = await leader.served.values()
            has_passed = SystemClock().epoch_ms() > since + 1000 * SHORT_DELAY_S
            return has_passed and metrics["bkheal_held_back_bookies", "maintenance"] == 1

        await when(is_held_back_although_the_delay_has_passed)
        (shown,) = (await site.asked("status"))["maintenance"]
        assert (shown["target"], shown["bookies"]) == (victim, [victim])
        assert await site.published() == before
    finally:
        await site.asked("maintenance", "end", victim)
    await site.asked("recovery", "delay", str(SHORT_DELAY_S - 1))  # seen at once; windows only at each read
    run = await site.run_after(before, RunKind.BOOKIES, RunCause.BOOKIE_LOSS)
    assert_complete(run, Verdict.UNDER_REPLICATED)
    await assert_repaired(site, victim, old)


@pytest.mark.long  # test_prometheus_exporter.py tests the exporter and its alerts without an audit
async def test_without_the_service_cron_audits_and_an_exporter_provide_the_alerts(site: Site) -> None:
    """The auditors are stopped. A real Prometheus has the chart's rules, with shorter times."""
    find_program("prometheus")
    await site.whole(delay_s=0)
    old, victim = await site.metadata(), site.cluster.bookies[4].bookie_id
    prometheus = Prometheus(site.home, free_loopback_port(random.SystemRandom()))
    prometheus.start()
    async with prometheus.running, await launch_exporter(site.cluster.metadata_uri, site.home, prometheus):
        await site.stop_auditors()
        await site.kill9(site.cluster.bookies[4])
        audit = site.bkheal("audit", "run", "--report-dir", str(site.home / "reports"))
        run, _ = await asyncio.gather(audit, prometheus.until_fire("BkhealBookiesLost"))
        # The driver marks first, so replicators may have repaired everything before Spark reads it.
        assert run["published"]["tasks_changed"] == sum(victim in found.metadata.members() for found in old.values())
        await assert_repaired(site, victim, old)
        await prometheus.until_clear("BkhealLedgersUnderReplicated", "BkhealAuditorNeverScraped")

        async def is_success_shown() -> bool:
            return await prometheus.has_values('bkheal_audit_last_success_timestamp_seconds{kind="bookies"} > 0')

        await prometheus.until(is_success_shown, "the audit shown by the exporter")
        assert await prometheus.is_clear("BkhealAuditorLeaderMissing", "BkhealClusterStateMissing")


async def test_a_rolling_restart_of_bookies_causes_no_marks(site: Site) -> None:
    await site.whole()
    before, leader = await site.published(), site.auditors[await site.leader()]
    for bookie in site.cluster.bookies:
        assert (await site.asked("ok-to-stop", bookie.bookie_id))["ok"]
        await bookie.stop()
        await site.until_down(bookie.bookie_id)
        await bookie.start()
        await site.until_down()

    async def none_is_lost() -> bool:
        return not (await leader.status())["bookies"]["lost"]

    await when(none_is_lost)
    assert {row["state"] for row in (await site.bkheal("bookies"))["items"]} == {"writable"}
    assert await site.published() == before


async def test_the_next_leader_keeps_its_vote_and_continues_a_running_delay(site: Site) -> None:
    await site.whole()
    before, old = await site.published(), await site.metadata()
    back, gone = site.cluster.bookies[1], site.cluster.bookies[5]
    await site.kill9(back, gone)
    since = await site.until_down(back.bookie_id, gone.bookie_id)
    leader, nodes = await site.leader(), await site.vote_names()
    assert [await auditor.leads() for auditor in site.auditors.values()].count(True) == 1
    await site.kill9(site.auditors[leader].process)
    other = site.auditors[await site.follow(leader)]
    assert (await other.status())["is_leader"]
    assert await site.vote_names() == nodes[1:]

    async def due() -> dict[BookieId, str]:
        return {lost["bookie_id"]: lost["audit_due"] for lost in (await other.status())["bookies"]["lost"]}

    async def is_due_as_it_was_for_the_leader_before() -> bool:
        return await due() == {
            bookie: rfc3339_if_known(since_ms + LONG_DELAY_S * 1000) for bookie, since_ms in since.items()
        }

    await when(is_due_as_it_was_for_the_leader_before)
    assert await site.down() == since

    await back.start()
    assert await site.until_down(gone.bookie_id) == {gone.bookie_id: since[gone.bookie_id]}
    assert await site.published() == before

    delay_s = (SystemClock().epoch_ms() - since[gone.bookie_id]) // 1000 + SHORT_DELAY_S
    await site.client.ports.tasks.switches.set_lost_bookie_delay_s(delay_s)
    due_ms = since[gone.bookie_id] + delay_s * 1000

    async def is_due_since_it_went() -> bool:
        return await due() == {gone.bookie_id: rfc3339_if_known(due_ms)}

    await when(is_due_since_it_went)
    run = await site.run_after(before, RunKind.BOOKIES, RunCause.BOOKIE_LOSS)
    assert_complete(run, Verdict.UNDER_REPLICATED)
    assert run.started_ms >= due_ms
    assert run.owner == gone.bookie_id
    await assert_repaired(site, gone.bookie_id, old)


async def test_after_an_outage_of_zookeeper_everything_recovers_and_nothing_is_taken_for_lost(site: Site) -> None:
    await site.whole(delay_s=0)
    before, old = await site.published(), await site.metadata()
    registered = (await site.client.ports.registrations.list()).registered
    processes = [served.process for served in site.everything()]

    async def all_live_and_none_is_ready() -> None:
        for served in site.everything():
            await served.until_status("/readyz", 503)
            assert (await served.get("/livez"))[0] == 200

    await site.outage(all_live_and_none_is_ready)

    async def is_connected() -> bool:
        return site.client.store.session.is_connected

    await when(is_connected)  # the test's own session may have ended as well
    for served in site.everything():
        await served.until_status("/readyz", 200)
    await when(site.one_leads)

    async def all_are_back() -> bool:
        seen = await site.client.ports.registrations.list()
        status = await site.auditors[await site.leader()].status()
        return seen.registered == registered == set(status["bookies"]["writable"]) and not await site.down()

    await when(all_are_back)
    assert [served.process for served in site.everything()] == processes
    assert all(process.is_running for process in processes)
    assert await site.published() == before

    victim = site.cluster.bookies[3]
    await site.kill9(victim)
    await site.until_down(victim.bookie_id)
    await site.press(RunKind.BOOKIES)  # after an outage the auditor would wait for the time of two sessions
    assert_complete(await site.run_after(before, RunKind.BOOKIES, RunCause.SPARK_UI), Verdict.UNDER_REPLICATED)
    await assert_repaired(site, victim.bookie_id, old)
