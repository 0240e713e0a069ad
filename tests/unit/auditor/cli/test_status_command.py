"""``bkheal status`` and ``underreplicated list``: what all alerts are about on one page, and lists in pages."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from auditor.cli.cluster import status
from auditor.cli.main import app
from bookie.metadata.bookies.drains import Drain, Drains
from bookie.metadata.layout import task_path
from bookie.metadata.nodes import ensure_path
from bookie.metadata.port import ANY_VERSION
from bookie.metadata.runs.records import Runs
from bookie.metadata.tasks.boosts import Boost, Boosts
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import BookieId, LedgerId
from bookie.model.run import RunCause, RunKind, RunRecord, RunState
from bookie.model.times import rfc3339
from bookie.runtime.clock import SystemClock
from tests.worlds.clocks import EPOCH_MS, ManualClock
from tests.worlds.cluster import ROOT
from tests.worlds.commands import CommandCluster
from tests.worlds.pulsar_nodes import CURSOR


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> CommandCluster:
    made = CommandCluster()
    made.clock = ManualClock()
    asyncio.run(made.fill())
    monkeypatch.setattr(status, "connected", made.connected)
    return made


def call(*words: str) -> Result:
    result = CliRunner().invoke(app, [*words, "--metadata-uri", "zk://h:1/ledgers"])
    assert result.exit_code == ExitCode.OK, (result.output, result.exception)
    return result


def shown(*words: str) -> Any:
    return json.loads(call(*words, "-o", "json").stdout)


def test_a_cluster_without_problems(cluster: CommandCluster) -> None:
    document = shown("status")
    assert document["bookies"] == {"writable": 2, "read_only": 0, "draining": [], "lost": []}
    backlog = document["underreplicated"]
    assert (backlog["ledgers"], backlog["waiting"], backlog["parked_by_reason"]) == (3, 1, {"no_live_copy": 2})
    assert backlog["severities"]["no_live_copy"]["ledgers"] == 3
    assert (document["held_because"], document["running"], document["pauses"]) == (None, [], [])
    text = call("status").stdout
    assert "no_live_copy: 3 ledgers" in text
    assert "remaining   unknown" in text
    document["underreplicated"]["eta_seconds"] = 0
    assert "remaining   only parked ledgers" in status.lines(document)


def test_everything_unusual_is_shown(cluster: CommandCluster) -> None:
    run = RunRecord(
        run_id="20261120T100001Z-0a1b2c",
        kind=RunKind.REPLICAS,
        cause=RunCause.HTTP,
        owner="me",
        process="a/1",
        state=RunState.RUNNING,
        is_dry_run=True,
        phase="scan",
        done=1,
        total=4,
        started_ms=EPOCH_MS,
        updated_ms=EPOCH_MS,
    )

    async def prepare() -> None:
        store = cluster.keeper
        runs = Runs(store, ROOT)
        await runs.write(run)
        await runs.pause_kind(RunKind.PLACEMENT, "me", EPOCH_MS + 60_000)
        await Drains(store, ROOT).start(Drain(BookieId("c"), "me", EPOCH_MS))
        for name in ("x", "y", "z"):
            await ensure_path(store, f"{ROOT}/cookies/{name}")
        async with cluster.connected("") as client:
            await client.ports.tasks.switches.disable()
            await client.ports.tasks.switches.set_lost_bookie_delay_s(600)

    asyncio.run(prepare())
    document = shown("status")
    assert (document["recovery_enabled"], document["lost_bookie_delay_seconds"]) == (False, 600)
    assert document["bookies"]["lost"] == ["x", "y", "z"]
    assert document["bookies"]["draining"] == ["c"]
    assert [each["run_id"] for each in document["running"]] == [run.run_id]
    assert [(each["check"], each["by"]) for each in document["pauses"]] == [("placement", "me")]
    text = call("status").stdout
    for line in ("recovery    DISABLED", "delay       600 s", "brake       HOLDS", "run         replicas (dry run)"):
        assert line in text
    assert "paused      the schedule of placement until" in text


def test_the_newest_image_is_shown_with_its_age(cluster: CommandCluster) -> None:
    assert shown("status")["image"] is None

    async def prepare() -> None:
        for number, written_ms in ((1, EPOCH_MS - 90_000_000), (2, EPOCH_MS - 60_000), (3, 0)):
            image = {"marked": 0, "written_from_ms": written_ms, "written_ledgers": 70 + number, "written_bytes": 4_000}
            run_id = f"20261120T10000{number}Z-0a1b2c"
            run = RunRecord(run_id, RunKind.BOOKIES, RunCause.SCHEDULE, "me", "a/1", RunState.DONE, image=image)
            await Runs(cluster.keeper, ROOT).write(replace(run, started_ms=EPOCH_MS + number))

    asyncio.run(prepare())
    image = shown("status")["image"]
    assert (image["run_id"], image["ledgers"], image["age_seconds"]) == ("20261120T100002Z-0a1b2c", 72, 60)
    assert "image       72 ledgers" in call("status").stdout


def test_a_watch_prints_a_line_for_each_status(cluster: CommandCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.clock = SystemClock()
    real = status.status_documents

    async def status_documents(*arguments: Any) -> Any:
        count = 0
        async for document in real(*arguments):
            yield document
            count += 1
            if count == 2:
                return

    monkeypatch.setattr(status, "status_documents", status_documents)
    assert len(call("status", "--watch", "--interval", "0.5").stdout.splitlines()) == 2
    lines = call("status", "--watch", "--interval", "0.5", "-o", "jsonl").stdout.splitlines()
    assert [json.loads(line)["kind"] for line in lines] == ["ClusterStatus"] * 2


def test_marked_ledgers_are_listed_in_pages(cluster: CommandCluster) -> None:
    first = call("underreplicated", "list", "--limit", "2", "-o", "jsonl")
    assert [json.loads(line)["ledger_id"] for line in first.stdout.splitlines()] == [7, 8]
    assert "--after 8" in first.stderr
    second = shown("underreplicated", "list", "--limit", "2", "--after", "8")
    assert ([row["ledger_id"] for row in second["items"]], second["next_after"]) == ([9], None)
    assert shown("underreplicated", "list", "--missing", "nobody")["items"] == []
    elsewhere = call("underreplicated", "list", "--missing", "nobody").stdout
    assert "because of nobody" in elsewhere, "other ledgers are marked"
    rows = shown("underreplicated", "list", "--missing", "a")["items"]
    assert [(row["state"], row["park_reason"]) for row in rows] == [
        ("parked", "no_live_copy"), ("parked", "no_live_copy"), ("waiting", None),
    ]  # fmt: skip
    table = call("underreplicated", "list").stdout.splitlines()
    assert table[1].split()[:3] == ["7", "parked:", "no_live_copy"]


def test_a_mark_that_cannot_be_read_is_listed_with_the_reason(cluster: CommandCluster) -> None:
    asyncio.run(cluster.keeper.set(task_path(ROOT, LedgerId(8)), b"rubbish", ANY_VERSION))
    for words in ((), ("--missing", "nobody")):
        (row,) = [row for row in shown("underreplicated", "list", *words)["items"] if row["ledger_id"] == 8]
        assert (row["missing"], row["since"]) == ([], None)
        assert "cannot be read" in row["detail"]
        assert "cannot be read" in call("underreplicated", "list", *words).stdout


def test_times_of_marked_ledgers_match_those_of_the_service(cluster: CommandCluster) -> None:
    async def boost() -> None:
        async with cluster.connected("") as client:
            await Boosts(client.store, client.cluster.root).start(Boost(LedgerId(9), "me", EPOCH_MS, EPOCH_MS + 60_001))

    asyncio.run(boost())
    row = shown("underreplicated", "list")["items"][2]
    assert (row["since"], row["boosted_until"]) == (rfc3339(EPOCH_MS), rfc3339(EPOCH_MS + 60_001))


def test_a_marked_ledger_is_listed_with_its_topic(cluster: CommandCluster) -> None:
    asyncio.run(cluster.add_marked(10, CURSOR))
    (row,) = [row for row in shown("underreplicated", "list")["items"] if row["ledger_id"] == 10]
    assert (row["topic"], row["component"], row["subscription"]) == ("persistent://t/n/orders", "cursor", "s/1")
    assert "persistent://t/n/orders (cursor)" in call("underreplicated", "list").stdout


def test_a_task_that_may_not_be_read_ends_neither_the_status_nor_the_list(cluster: CommandCluster) -> None:
    ledgers = [row["ledger_id"] for row in shown("underreplicated", "list")["items"]]
    cluster.cell.deny(task_path(ROOT, ledgers[0]))
    assert shown("status")["underreplicated"]["ledgers"] == len(ledgers)
    rows = shown("underreplicated", "list")["items"]
    assert [row["ledger_id"] for row in rows if "access" in row["detail"] or "ACL" in row["detail"]] == ledgers[:1]
