"""Commands with ``--at URL``: the service does the work, and the command prints the same as without it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from auditor.api.access.tokens import Role
from auditor.cli.cluster import status
from auditor.cli.main import app
from bookie.metadata.bookies.maintenance import MaintenanceWindows, Window
from bookie.metadata.runs.records import Runs
from bookie.metadata.tasks.boosts import Boosts
from bookie.metadata.tasks.debts import PlacementDebt, PlacementDebts
from bookie.metadata.tasks.switches import RecoverySwitches
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.run import RunKind
from bookie.model.times import rfc3339
from tests.unit.auditor.api.test_api_findings import RUN, write_findings
from tests.worlds.api import ApiWorld, running
from tests.worlds.clocks import EPOCH_MS
from tests.worlds.cluster import ROOT
from tests.worlds.ledgers import make_metadata


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[ApiWorld]:
    write_findings(tmp_path / "reports" / RUN)
    async with running(tmp_path) as made:
        yield made


async def call(world: ApiWorld, *words: str, role: Role = Role.ADMINISTER) -> Result:
    """A command in a thread of its own; the service answers in this one."""
    environment = {"BKHEAL_TOKEN": world.tokens[role].token}
    return await asyncio.to_thread(CliRunner().invoke, app, [*words, "--at", world.url], env=environment)


async def document(world: ApiWorld, *words: str) -> Any:
    result = await call(world, *words, "-o", "json")
    assert result.exit_code == ExitCode.OK, result.output
    return json.loads(result.stdout)


async def test_dead_letters_are_listed_in_pages_and_as_lines(world: ApiWorld) -> None:
    listed = await document(world, "dead-letters", "list")
    assert (listed["kind"], [row["ledger_id"] for row in listed["items"]]) == ("DeadLetterList", [7, 8])
    first = await call(world, "dead-letters", "list", "--limit", "1", "-o", "jsonl")
    assert [json.loads(line)["ledger_id"] for line in first.stdout.splitlines()] == [7]
    assert "--after 7" in first.stderr
    assert "no_live_copy" in (await call(world, "dead-letters", "show", "8")).stdout
    assert (await call(world, "dead-letters", "show", "9")).exit_code == ExitCode.FAILED


async def test_dead_letters_are_decided_after_the_confirmation(world: ApiWorld) -> None:
    words = ("dead-letters", "accept-loss", "7", "--reason", "disks destroyed")
    assert (await call(world, *words)).exit_code == ExitCode.USAGE, "no terminal, and no --yes"
    assert (await document(world, *words, "--dry-run"))["ledgers"][0]["outcome"] == "accepted"
    assert await world.upkeep.cluster.marked() == [7, 8, 9]
    assert (await document(world, *words, "--yes"))["ledgers"][0]["outcome"] == "accepted"
    assert await world.upkeep.cluster.marked() == [8, 9]
    assert (await call(world, "dead-letters", "drop", "9", "--yes")).exit_code == ExitCode.FAILED
    assert (await call(world, "dead-letters", "retry", "8", "--yes")).exit_code == ExitCode.OK
    assert (await document(world, "dead-letters", "list"))["items"] == []
    actions = [row["action"] for row in (await document(world, "changes"))["items"]]
    assert actions == ["dead-letters retry", "dead-letters accept-loss"]


async def test_ok_to_stop_ends_with_its_verdict(world: ApiWorld) -> None:
    assert (await call(world, "ok-to-stop", "c")).stdout.startswith("yes: c may be stopped (3 ledgers")
    async with world.upkeep.cluster.connected("") as client:
        await client.ports.ledgers.create(10, make_metadata((0, "c d"), quorum=(2, 2), last=9))
    no = await call(world, "ok-to-stop", "c", "d")
    assert (no.exit_code, "ledger 10 from entry 0: 0 copies left" in no.stdout) == (1, True)


async def test_switch_delay_limits_and_boosts_are_set(world: ApiWorld) -> None:
    switches = RecoverySwitches(world.upkeep.cluster.keeper, ROOT)
    assert (await document(world, "recovery", "delay", "60"))["before_seconds"] == 0
    assert await switches.lost_bookie_delay_s() == 60
    await document(world, "recovery", "disable")
    assert await switches.is_disabled()
    assert (await document(world, "recovery", "status"))["enabled"] is False
    assert (await document(world, "throttle", "set", "--bytes-per-second", "1MiB"))["bytes_per_second"] == 1 << 20
    assert "all replicators: 1.0 MiB/s" in (await call(world, "throttle", "show")).stdout
    assert (await document(world, "throttle", "clear"))["limited"] is False
    assert (await document(world, "underreplicated", "boost", "9"))["ledgers"][0]["outcome"] == "boosted"
    assert [each.ledger_id for each in await Boosts(world.upkeep.cluster.keeper, ROOT).active(EPOCH_MS)] == [9]


async def test_who_may_only_operate_is_refused_with_the_role_that_is_needed(world: ApiWorld) -> None:
    result = await call(world, "recovery", "disable", role=Role.OPERATE)
    assert result.exit_code != ExitCode.OK
    assert "administer" in str(result.exception)
    assert not await RecoverySwitches(world.upkeep.cluster.keeper, ROOT).is_disabled()


async def test_drains_begin_and_end(world: ApiWorld) -> None:
    assert (await document(world, "drain", "start", "c", "--yes"))["bookies"] == ["c"]
    assert (await document(world, "drain", "stop", "c", "--yes"))["stopped"] == ["c"]


async def test_drains_are_listed_and_schedules_paused(world: ApiWorld) -> None:
    await document(world, "drain", "start", "c", "--yes")
    assert [row["bookie_id"] for row in (await document(world, "drain", "list"))["items"]] == ["c"]
    paused = await call(world, "audit", "pause", "--kind", "replicas", "--for", "2h")
    assert paused.stdout == f"the schedule of replicas runs is paused until {rfc3339(EPOCH_MS + 7_200_000)}\n"


async def test_progress_is_shown(world: ApiWorld) -> None:
    assert (await document(world, "progress"))["backlog"]["ledgers"] == 3


async def test_findings_are_listed(world: ApiWorld) -> None:
    items = (await document(world, "report", "findings", "--severity", "below_write_quorum"))["items"]
    assert [(row["ledger_id"], row["missing"]) for row in items] == [(2, ["b:1"])]


async def test_findings_of_all_reports_of_the_service_are_listed_in_pages_of_any_size(
    world: ApiWorld, tmp_path: Path
) -> None:
    other = RUN.replace("20261120", "20261121")
    write_findings(tmp_path / "reports" / other)
    words = ("report", "findings", "--bookie", "a:1", "--since", "1d")
    expected = [(run, ledger, fragment) for run in (other, RUN) for ledger in (1, 2, 3) for fragment in (0, 1)]
    for limit in (1, 4, 6, 100):
        found: list[tuple[str, int, int]] = []
        after: tuple[str, ...] = ()
        while True:
            page = await document(world, *words, "--limit", str(limit), *after)
            found += [(row["run_id"], row["ledger_id"], row["fragment_index"]) for row in page["items"]]
            if page["next_after"] is None:
                break
            after = ("--after", page["next_after"])
        assert found == expected, limit
    assert (await document(world, *words[:-1], "2200-01-01"))["items"] == []
    assert (await call(world, *words, "--after", "1:0:MISSING_BOOKIE")).exit_code == ExitCode.USAGE


def test_findings_are_listed_from_the_directory_too(tmp_path: Path) -> None:
    write_findings(tmp_path / RUN)
    words = ["report", "findings", RUN, "--report-dir", str(tmp_path), "--limit", "2", "-o", "jsonl"]
    refused = CliRunner().invoke(app, words)
    assert "holds no report" in str(refused.exception), "a run without a summary may still be active"


async def test_the_impact_of_the_newest_run_is_asked_of_the_service(world: ApiWorld) -> None:
    listed = await document(world, "impact", "--severity", "critical")
    assert (listed["kind"], listed["run_id"], listed["items"]) == ("TopicImpactList", RUN, [])
    printed = await call(world, "impact", RUN)
    assert "no finding names a topic of Pulsar" in printed.stdout


async def test_the_status_is_the_document_of_the_direct_command(world: ApiWorld) -> None:
    await world.upkeep.fill()
    async with world.upkeep.cluster.connected("") as client:
        await Runs(client.store, ROOT).pause_kind(RunKind.PLACEMENT, "me", EPOCH_MS + 60_000)
        window = Window("c", (BookieId("c"),), "me", EPOCH_MS, EPOCH_MS + 60_000, False, "disk")
        await MaintenanceWindows(client.store, ROOT).start(window)
        await client.ports.tasks.switches.set_lost_bookie_delay_s(600)
        direct = await anext(status.looks(client, 5.0))
    there = await document(world, "status")
    assert {name: there[name] for name in direct} == direct
    assert there["underreplicated"]["severities"]["no_live_copy"]["ledgers"] == 3
    assert (there["pauses"][0]["check"], there["maintenance"][0]["target"]) == ("placement", "c")
    text = (await call(world, "status")).stdout
    for line in ("delay       600 s", "maintenance c until", "paused      the schedule of placement"):
        assert line in text


async def test_marked_ledgers_are_listed_in_pages(world: ApiWorld) -> None:
    ids = [task.ledger_id for task in world.operations.tasks]
    first = await document(world, "underreplicated", "list", "--limit", "1")
    assert ([row["ledger_id"] for row in first["items"]], first["next_after"]) == (ids[:1], ids[0])
    rest = (await document(world, "underreplicated", "list", "--after", str(ids[0])))["items"]
    assert [row["ledger_id"] for row in rest] == ids[1:]
    assert {row["state"] for row in first["items"] + rest} <= {"waiting", "in progress", "parked: no_live_copy"}
    assert str(ids[0]) in (await call(world, "underreplicated", "list")).stdout


async def test_runs_are_listed_and_shown(world: ApiWorld) -> None:
    run_id = await world.start()
    assert [row["run_id"] for row in (await document(world, "audit", "list"))["items"]] == [run_id]
    kind = world.control.status().running[0].kind
    others = [each.value for each in RunKind if each is not kind]
    assert (await document(world, "audit", "list", "--kind", others[0]))["items"] == []
    assert run_id in (await call(world, "audit", "list")).stdout
    assert (await document(world, "audit", "show", run_id))["run"]["kind"] == kind.value


async def test_bookies_and_windows_are_listed(world: ApiWorld) -> None:
    listed = (await document(world, "bookies"))["items"]
    assert [row["bookie_id"] for row in listed] == [view.bookie_id for view in world.operations.known]
    assert listed[-1]["state"] == "lost"
    assert "no maintenance window" in (await call(world, "maintenance", "list")).stdout


async def test_placement_debts_are_listed(world: ApiWorld) -> None:
    await world.upkeep.fill()
    debts = PlacementDebts(world.upkeep.cluster.keeper, ROOT)
    for ledger in (9, 11):
        assert await debts.add(PlacementDebt(LedgerId(ledger), EPOCH_MS, (EntryId(0),), "one rack"))
    items = (await document(world, "debts", "list"))["items"]
    assert [(row["ledger_id"], row["state"]) for row in items] == [(9, "marked"), (11, "waiting")]
    page = (await world.operate("GET", "/api/v1/debts?limit=1")).json
    assert (page["items"], page["next_after"]) == (items[:1], 9)
