"""Commands with ``--at URL``: the service does the work, and the command prints the same as without the option."""

from __future__ import annotations

import asyncio
import json
import webbrowser
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from auditor.api.http import report_routes
from auditor.cli.audit import remote_reports
from auditor.cli.audit.remote import Remote, RemoteRefusedError, RemoteUnavailableError
from auditor.cli.cluster import status
from auditor.cli.dead_letters import retry
from auditor.cli.drains.remote import remote_drain_status
from auditor.cli.drains.status import observe_or_wait
from auditor.cli.main import app
from auditor.operating.drain_status import status_document
from bookie.metadata.bookies.cookies import Cookie, CookieStore
from bookie.metadata.bookies.drains import Drain, Drains
from bookie.metadata.bookies.maintenance import MaintenanceWindow, MaintenanceWindows
from bookie.metadata.bookies.topology import TopologyStore
from bookie.metadata.cluster import open_cluster
from bookie.metadata.layout import lost_bookie_delay_path
from bookie.metadata.nodes import put
from bookie.metadata.port import AccessDeniedError
from bookie.metadata.runs.records import Runs
from bookie.metadata.tasks.boosts import Boosts
from bookie.metadata.tasks.debts import PlacementDebt, PlacementDebts
from bookie.metadata.tasks.parked import ParkedTasks
from bookie.metadata.tasks.switches import RecoverySwitches
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.run import RunKind
from bookie.model.times import rfc3339
from bookie.runtime.access.tokens import Role
from spark_jobs.report.history import NoSuchReportError
from tests.unit.auditor.api.test_api_findings import RUN, write_findings
from tests.worlds import report as report_world
from tests.worlds.api import ApiWorld, running
from tests.worlds.clocks import EPOCH_MS
from tests.worlds.cluster import ROOT
from tests.worlds.ledgers import make_metadata

C = BookieId("c")


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[ApiWorld]:
    write_findings(tmp_path / "reports" / RUN)
    async with running(tmp_path) as made:
        yield made


async def call(world: ApiWorld, *words: str, role: Role = Role.ADMINISTER) -> Result:
    """Run a command in a thread; the service answers in this one."""
    environment = {"BKHEAL_TOKEN": world.tokens[role].token}
    return await asyncio.to_thread(CliRunner().invoke, app, [*words, "--at", world.url], env=environment)


async def document(world: ApiWorld, *words: str) -> Any:
    result = await call(world, *words, "-o", "json")
    assert result.exit_code == ExitCode.OK, result.output
    return json.loads(result.stdout)


async def test_dead_letters_are_listed_in_pages_and_as_json_lines(world: ApiWorld) -> None:
    listed = await document(world, "dead-letters", "list")
    assert (listed["kind"], [row["ledger_id"] for row in listed["items"]]) == ("DeadLetterList", [7, 8])
    first = await call(world, "dead-letters", "list", "--limit", "1", "-o", "jsonl")
    assert [json.loads(line)["ledger_id"] for line in first.stdout.splitlines()] == [7]
    assert "--after 7" in first.stderr
    assert "no_live_copy" in (await call(world, "dead-letters", "show", "8")).stdout
    assert (await call(world, "dead-letters", "show", "9")).exit_code == ExitCode.FAILED
    await put(world.upkeep.cluster.keeper, ParkedTasks(world.upkeep.cluster.keeper, ROOT).path(LedgerId(8)), b"x")
    assert "record of ledger 8 cannot be read" in (await call(world, "dead-letters", "show", "8")).stderr


async def test_dead_letters_are_changed_after_confirmation(world: ApiWorld) -> None:
    words = ("dead-letters", "accept-loss", "7", "--reason", "disks destroyed")
    assert (await call(world, *words)).exit_code == ExitCode.USAGE, "there is no terminal and no --yes"
    assert (await document(world, *words, "--dry-run"))["ledgers"][0]["outcome"] == "accepted"
    assert await world.upkeep.cluster.marked() == [7, 8, 9]
    assert (await document(world, *words, "--yes"))["ledgers"][0]["outcome"] == "accepted"
    assert await world.upkeep.cluster.marked() == [8, 9]
    assert (await call(world, "dead-letters", "drop", "9", "--yes")).exit_code == ExitCode.FAILED
    assert (await call(world, "dead-letters", "retry", "8", "--yes")).exit_code == ExitCode.OK
    assert (await document(world, "dead-letters", "list"))["items"] == []
    actions = [row["action"] for row in (await document(world, "changes"))["items"]]
    assert actions == ["dead-letters retry", "dead-letters accept-loss"]


async def test_missing_letters_are_skipped_unless_they_are_named(
    world: ApiWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "AT_ONCE_MAX", 1)
    loop, ask = asyncio.get_running_loop(), Remote.ask
    cluster = world.upkeep.cluster

    async def unpark() -> None:
        async with cluster.connected("") as client:
            await client.parked.unpark(LedgerId(8))

    def repaired_meanwhile(remote: Remote, method: str, path: str, body: Any = None) -> Any:
        if body is not None and body.get("ledgers") == [8]:
            asyncio.run_coroutine_threadsafe(unpark(), loop).result(10)
        return ask(remote, method, path, body)

    async with cluster.connected("") as client:
        records = await client.parked.list()
        await put(client.store, client.parked.path(LedgerId(9)), b'{"format":99}')
    monkeypatch.setattr(Remote, "ask", repaired_meanwhile)
    every = await call(world, "dead-letters", "retry", "--all", "--yes")
    assert (every.exit_code, every.stdout) == (
        ExitCode.OK,
        "2 parked ledgers will be tried again\n1 is not parked any more, or its record cannot be deleted: 8\n",
    )
    async with cluster.connected("") as client:
        assert await client.parked.ids() == frozenset()
        for record in records:
            await client.parked.park(record)
    named = await call(world, "dead-letters", "retry", "7", "8", "--yes", "-o", "json")
    assert (named.exit_code, json.loads(named.stdout)["ledgers"]) == (ExitCode.FAILED, [7])
    assert "not parked: 8; the records of 1 chosen ledger were not removed" in named.stderr
    assert "nothing was changed" not in named.output


async def test_letters_retried_by_the_service_before_an_error_are_shown(
    world: ApiWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpark = ParkedTasks.unpark

    async def failing(parked: ParkedTasks, ledger_id: LedgerId) -> None:
        if ledger_id == 8:
            raise AccessDeniedError("refused")
        await unpark(parked, ledger_id)

    with monkeypatch.context() as patch:
        patch.setattr(ParkedTasks, "unpark", failing)
        ended = await call(world, "dead-letters", "retry", "7", "8", "--yes", "-o", "json")
        assert json.loads(ended.stdout)["ledgers"] == [7]
        assert "records of 1 chosen ledger were not removed, or their state is unknown: 8" in ended.stderr
        again = await call(world, "dead-letters", "retry", "8", "--yes", "-o", "json")
        assert (again.exit_code, again.stdout) == (ended.exit_code, "")
    assert ended.exit_code != ExitCode.OK
    assert (await document(world, "dead-letters", "retry", "8", "--yes"))["ledgers"] == [8]


async def test_ok_to_stop_exits_with_its_verdict(world: ApiWorld) -> None:
    assert (await call(world, "ok-to-stop", "c")).stdout.startswith("yes: c may be stopped (3 ledgers")
    async with world.upkeep.cluster.connected("") as client:
        await client.ports.ledgers.create(10, make_metadata((0, "c d"), quorum=(2, 2), last=9))
    no = await call(world, "ok-to-stop", "c", "d")
    assert (no.exit_code, "ledger 10 from entry 0: 0 copies left" in no.stdout) == (1, True)
    assert (await call(world, "ok-to-stop", "c")).exit_code == ExitCode.OK
    strict = await call(world, "ok-to-stop", "c", "--strict")
    assert (strict.exit_code, "1 copy left, 2 needed" in strict.stdout) == (1, True)


@pytest.mark.parametrize("option", [("--min-racks", "3"), ("--topology-file", "file"), ("--worst", "1")], ids=" ".join)
async def test_ok_to_stop_refuses_options_that_the_service_does_not_support(
    world: ApiWorld, option: tuple[str, str]
) -> None:
    refused = await call(world, "ok-to-stop", "c", *option)
    assert (refused.exit_code, "yes" in refused.stdout) == (ExitCode.USAGE, False)
    assert option[0] in refused.output


async def test_what_if_counts_ledgers_by_severity(world: ApiWorld) -> None:
    async with world.upkeep.cluster.connected("") as client:
        await client.ports.ledgers.create(10, make_metadata((0, "c d"), quorum=(2, 2), last=9))
        await TopologyStore(client.store, client.cluster).write('{"c": "/r1", "d": "/r1"}')
    one = await document(world, "what-if", "c")
    assert (one["kind"], one["bookies"], one["source"], one["image_age_seconds"]) == ("WhatIf", ["c"], "metadata", None)
    assert [(row["ledger_id"], row["severity"], row["copies_left"]) for row in one["worst"]] == [(10, "critical", 1)]
    rack = await document(world, "what-if", "rack:/r1", "--worst", "0")
    assert (rack["bookies"], rack["worst"]) == (["c", "d"], [])
    assert rack["findings"][0] == {"severity": "no_live_copy", "ledgers": 1, "already": 0, "bytes_estimate": 0}
    text = await call(world, "what-if", "rack:/r1")
    assert "no_live_copy: 1 ledger more, 0 already" in text.stdout
    assert "ledger 10: no_live_copy, 0 copies left" in text.stdout
    assert (await call(world, "what-if", "rack:/r9")).exit_code != ExitCode.OK
    assert (await call(world, "what-if", "nobody")).exit_code != ExitCode.OK


async def test_what_if_accepts_a_bookie_without_a_cookie_that_a_ledger_names(world: ApiWorld) -> None:
    assert (await document(world, "what-if", "a"))["findings"][0]["already"] == 3
    refused = await call(world, "what-if", "nobody", "no-one", "c")
    assert "no bookie of this cluster: nobody, no-one;" in str(refused.exception)


async def test_what_if_counts_what_stopped_bookies_have_already_cost(world: ApiWorld) -> None:
    keeper = world.upkeep.cluster.keeper
    cookies = CookieStore(keeper, await open_cluster(keeper, ROOT))
    for name in "ab":
        await cookies.create(Cookie(BookieId(name), ("/j",), ("/l",)))
    both = await document(world, "what-if", "a", "b")
    assert both["not_registered"] == ["a", "b"]
    assert both["findings"] == [{"severity": "no_live_copy", "ledgers": 0, "already": 3, "bytes_estimate": 0}]
    text = (await call(world, "what-if", "a")).stdout
    assert "a is not running: its ledgers lack its copies already" in text
    assert "no_live_copy: 0 ledgers more, 3 already" in text
    assert "no ledger would have a worse severity than now" in text


async def test_recovery_can_be_shown_and_switched_while_the_delay_is_unreadable(world: ApiWorld) -> None:
    keeper = world.upkeep.cluster.keeper
    await put(keeper, lost_bookie_delay_path(ROOT), b"soon", ROOT)
    await document(world, "recovery", "disable")
    assert await RecoverySwitches(keeper, ROOT).is_disabled()
    shown = await document(world, "recovery", "status")
    assert (shown["enabled"], shown["lost_bookie_delay_seconds"]) == (False, None)
    text = "lost-bookie delay: unreadable: set it again with `bkheal recovery delay DELAY`"
    assert (await call(world, "recovery", "status")).stdout == f"recovery: disabled\n{text}\n"
    delay = await call(world, "recovery", "delay")
    assert (delay.exit_code, delay.stdout) == (ExitCode.FAILED, "")
    assert "set it again with `bkheal recovery delay DELAY`" in delay.stderr
    assert (await document(world, "recovery", "delay", "60"))["before_seconds"] is None


async def test_recovery_delay_limits_and_boosts_are_set(world: ApiWorld) -> None:
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


@pytest.mark.parametrize("is_answering", [True, False])
async def test_boosts_before_a_refused_one_are_reported(
    world: ApiWorld, monkeypatch: pytest.MonkeyPatch, is_answering: bool
) -> None:
    boosts = Boosts(world.upkeep.cluster.keeper, ROOT)
    alone = await call(world, "underreplicated", "boost", "12345", "9")
    assert (alone.exit_code, await boosts.active(EPOCH_MS)) == (ExitCode.FAILED, [])
    if not is_answering:
        ask = Remote.ask

        def silent(remote: Remote, method: str, path: str, body: Any = None) -> Any:
            if "12345" in path:
                raise RemoteUnavailableError("no answer")
            return ask(remote, method, path, body)

        monkeypatch.setattr(Remote, "ask", silent)
    result = await call(world, "underreplicated", "boost", "9", "12345", "8", "-o", "json")
    assert result.exit_code == (ExitCode.FAILED if is_answering else ExitCode.UNAVAILABLE)
    outcomes = {row["ledger_id"]: row["outcome"] for row in json.loads(result.stdout)["ledgers"]}
    assert outcomes == {9: "boosted", 12345: "not_boosted" if is_answering else "unknown", 8: "not_tried"}
    assert [each.ledger_id for each in await boosts.active(EPOCH_MS)] == [9]
    assert "nothing was changed" not in result.output
    assert ("not marked for repair: 12345" in result.stderr) == is_answering
    assert "not tried: 8" in result.stderr


async def test_an_operator_is_refused_with_the_required_role(world: ApiWorld) -> None:
    result = await call(world, "recovery", "disable", role=Role.OPERATE)
    assert result.exit_code != ExitCode.OK
    assert "administer" in str(result.exception)
    assert not await RecoverySwitches(world.upkeep.cluster.keeper, ROOT).is_disabled()


async def test_drains_start_and_stop(world: ApiWorld) -> None:
    assert (await document(world, "drain", "start", "c", "--yes"))["bookies"] == ["c"]
    assert (await document(world, "drain", "stop", "c", "--dry-run"))["stopped"] == ["c"]
    absent = await call(world, "drain", "stop", "d", "-o", "json")  # without a question
    assert (absent.exit_code, json.loads(absent.stdout)["stopped"]) == (ExitCode.FAILED, [])
    assert "not being drained: d; `bkheal drain list`" in absent.stderr
    assert (await document(world, "drain", "stop", "c", "--yes"))["stopped"] == ["c"]


async def test_the_start_of_a_drain_that_is_still_being_checked_is_cancelled(
    world: ApiWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_checking = asyncio.Event()

    async def endless(*_: Any, **__: Any) -> None:
        is_checking.set()
        await asyncio.Event().wait()

    monkeypatch.setattr("auditor.operating.drains.check_startable", endless)
    starting = asyncio.create_task(world.operate("POST", "/api/v1/drains", json={"bookies": ["c"]}))
    await is_checking.wait()
    stopped = await call(world, "drain", "stop", "c")  # without a question: nothing is recorded yet
    assert stopped.exit_code == ExitCode.FAILED
    assert (await starting).status == 409
    assert await Drains(world.upkeep.cluster.keeper, ROOT).read() == {}


async def test_drains_cancelled_by_the_service_before_an_error_are_shown(
    world: ApiWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    drains = Drains(world.upkeep.cluster.keeper, ROOT)
    await drains.start(*(Drain(BookieId(name), "me", EPOCH_MS) for name in "cd"))
    ask = Remote.ask

    def refusing(remote: Remote, method: str, path: str, body: Any = None) -> Any:
        if path.endswith("/d"):
            raise RemoteRefusedError("refused", 403)
        return ask(remote, method, path, body)

    monkeypatch.setattr(Remote, "ask", refusing)
    ended = await call(world, "drain", "stop", "c", "d", "--yes", "-o", "json")
    assert (ended.exit_code, json.loads(ended.stdout)["stopped"]) == (ExitCode.FAILED, ["c"])
    assert "refused" in ended.stderr
    assert (await drains.read()).keys() == {"d"}


async def test_drains_of_several_bookies_begin_all_or_none(world: ApiWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    words, drains = ("drain", "start", "c", "d", "--yes"), Drains(world.upkeep.cluster.keeper, ROOT)
    async with world.upkeep.cluster.connected("") as client:
        await client.ports.ledgers.create(10, make_metadata((0, "d"), quorum=(1, 1), last=9))
        refused = await call(world, *words)
        assert "there would be too few bookies" in str(refused.exception)
        assert await drains.read() == {}
        await client.ports.ledgers.delete(10)

    def older(remote: Remote, method: str, path: str, body: Any = None) -> Any:
        raise RemoteRefusedError(f"{world.url}: {path} allows GET", 405)

    with monkeypatch.context() as patch:
        patch.setattr(Remote, "ask", older)
        old = await call(world, *words)
    assert (old.exit_code, "none was begun, so name one BOOKIE" in old.stderr) == (ExitCode.FAILED, True)
    assert (await document(world, *words))["bookies"] == ["c", "d"]
    assert (await drains.read()).keys() == {"c", "d"}


async def test_the_rest_of_a_drain_is_shown_as_without_a_service(world: ApiWorld) -> None:
    none = await call(world, "drain", "status")
    assert (none.exit_code, "no bookie is being drained" in none.output) == (ExitCode.FAILED, True)
    cluster = world.upkeep.cluster
    async with cluster.connected("") as client:
        await client.ports.ledgers.create(10, make_metadata((0, "c"), quorum=(1, 1), last=9))
    await document(world, "drain", "start", "c", "--yes")
    left = await call(world, "drain", "status", "-o", "json")
    async with cluster.connected("") as client:
        drains = await Drains(client.store, ROOT).read()
        seen, _ = await observe_or_wait(client, (C,), drains, is_waiting=False, timeout_s=None, pulsar=None)
    expected = {"apiVersion": "bkheal/v1", "kind": "DrainStatus", **status_document(seen)}
    assert (left.exit_code, json.loads(left.stdout)) == (ExitCode.FAILED, expected)
    assert expected["ledgers_left"] == 1
    assert "nothing is left on it" in (await call(world, "drain", "status", "d", "--wait")).stdout
    unknown = await call(world, "drain", "status", "nobody")
    assert "no bookie of this cluster: nobody" in str(unknown.exception)
    timeout = await call(world, "drain", "status", "--wait", "--timeout", "1")
    assert (timeout.exit_code, "stopped waiting after 1 s" in timeout.stderr) == (ExitCode.FAILED, True)
    pulsar = await call(world, "drain", "status", "--wait", "--pulsar-admin", "http://localhost:1")
    assert (pulsar.exit_code, "not unloaded with --at" in pulsar.output) == (ExitCode.USAGE, True)


def test_a_wait_for_a_drain_polls_with_pauses_until_nothing_is_left() -> None:
    now_s, asked, pauses = 0.0, [], []
    numbers = iter((100, 60, 60, 0))

    class Auditor:
        """An auditor whose answers take four seconds each."""

        def ask(self, method: str, path: str, query: dict[str, Any]) -> dict[str, Any]:
            nonlocal now_s
            now_s += 4
            asked.append(query["bookie"])
            row = {"bookie_id": "c", "state": "read_only", "since": rfc3339(EPOCH_MS)}
            return {"ledgers_left": next(numbers), "bookies": [row], "eta_seconds": None}

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds
        pauses.append(seconds)

    service: Any = Auditor()
    last = remote_drain_status(service, (), is_waiting=True, timeout_s=None, sleep=sleep, monotonic_s=lambda: now_s)
    assert (asked, pauses) == ([None, ["c"], ["c"], ["c"]], [20.0, 20.0, 20.0])
    assert (last["ledgers_left"], last["eta_seconds"], last["ledgers_per_second"]) == (0, 0, 100 / 76)
    numbers = iter((100, 60, 50))
    last = remote_drain_status(service, (), is_waiting=True, timeout_s=45, sleep=sleep, monotonic_s=lambda: now_s)
    assert (last["ledgers_left"], last["eta_seconds"]) == (60, 42.0)


async def test_a_wait_for_a_registered_bookie_that_is_not_being_drained_ends(world: ApiWorld) -> None:
    async with world.upkeep.cluster.connected("") as client:
        await client.ports.ledgers.create(20, make_metadata((0, "c d"), quorum=(2, 2), last=9))
    waited = await call(world, "drain", "status", "c", "--wait")
    assert waited.exit_code == ExitCode.FAILED
    assert "c is registered and not being drained, so nothing moves its data: `bkheal drain start c`" in waited.stderr


async def test_drains_are_listed_and_schedules_are_paused(world: ApiWorld) -> None:
    await document(world, "drain", "start", "c", "--yes")
    assert [row["bookie_id"] for row in (await document(world, "drain", "list"))["items"]] == ["c"]
    paused = await call(world, "audit", "pause", "--kind", "replicas", "--for", "2h")
    assert paused.stdout == f"the schedule of replicas runs is paused until {rfc3339(EPOCH_MS + 7_200_000)}\n"


async def test_progress_is_shown(world: ApiWorld) -> None:
    assert (await document(world, "progress"))["backlog"]["ledgers"] == 3


async def test_findings_are_listed(world: ApiWorld) -> None:
    items = (await document(world, "report", "findings", "--severity", "below_write_quorum"))["items"]
    assert [(row["ledger_id"], row["missing"]) for row in items] == [(2, ["b:1"])]
    (line,) = (
        await call(world, "report", "findings", "--severity", "below_write_quorum", "-o", "jsonl")
    ).stdout.splitlines()
    assert (json.loads(line)["kind"], json.loads(line)["finding"]) == ("Finding", items[0])


async def test_findings_of_all_reports_are_listed_in_pages_of_any_size(
    world: ApiWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_reports, "_PAGE", 1)
    monkeypatch.setattr(report_routes, "_LISTED_DEFAULT", 1)
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


async def test_reports_are_listed_shown_compared_and_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def browse(url: str) -> bool:
        opened.append(url)
        return True

    monkeypatch.setattr(webbrowser, "open", browse)
    first, second, other = (
        report_world.at(summary, day)
        for day, summary in enumerate((report_world.CLEAN, report_world.NO_LIVE_COPY, report_world.PLACEMENT))
    )
    report_world.write(tmp_path / "reports", first, second, other)
    (tmp_path / "reports" / RUN).mkdir()
    (tmp_path / "reports" / RUN / "summary.json").write_text("[]")
    monkeypatch.setattr(remote_reports, "_PAGE", 2)
    async with running(tmp_path) as world:
        listed = (await document(world, "report", "list"))["items"]
        here = CliRunner().invoke(app, ["report", "list", "--report-dir", str(tmp_path / "reports"), "-o", "json"])
        assert listed == json.loads(here.stdout)["items"], "both leave out a summary that cannot be read"
        assert [row["run_id"] for row in listed] == [other.run_id, second.run_id, first.run_id]
        lines = (await call(world, "report", "list", "--limit", "1", "-o", "jsonl")).stdout.splitlines()
        assert [json.loads(line)["run_id"] for line in lines] == [other.run_id]
        shown = await document(world, "report", "show", second.run_id[:8])
        assert shown == json.loads((tmp_path / "reports" / second.run_id / "summary.json").read_bytes())
        assert "bkheal ledger show 42" in (await call(world, "report", "show", second.run_id)).stdout
        ambiguous = await call(world, "report", "show", first.run_id[:6])
        assert isinstance(ambiguous.exception, NoSuchReportError), "the exit code is the one without --at"
        assert "3 runs begin with" in str(ambiguous.exception)
        text = (await call(world, "report", "diff", "", second.run_id)).stdout
        assert "verdict     clean -> no live copy" in text
        back = await document(world, "report", "diff", second.run_id, first.run_id)
        assert (back["old"], back["new"]) == (second.run_id, first.run_id)
        alone = await call(world, "report", "diff", "", first.run_id)
        assert "no complete bookies check of that cluster before" in str(alone.exception)
        assert (await call(world, "report", "open", first.run_id)).stdout == f"{world.url}/reports/{first.run_id}/\n"
        assert opened == [f"{world.url}/reports/{first.run_id}/"]
        missing = await call(world, "report", "show", "20300101T000000Z-aaaaaa")
        assert "no such report" in str(missing.exception)


async def test_a_service_without_reports_lists_none(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        assert (await call(world, "report", "list")).stdout.startswith("no reports with the service")
        missing = await call(world, "report", "show")
        assert isinstance(missing.exception, NoSuchReportError)
        assert "the service has no report" in str(missing.exception)


async def test_the_impact_of_the_newest_run_is_read_from_the_service(world: ApiWorld) -> None:
    listed = await document(world, "impact", "--severity", "critical")
    assert (listed["kind"], listed["run_id"], listed["items"]) == ("TopicImpactList", RUN, [])
    printed = await call(world, "impact", RUN)
    assert "no finding names a topic of Pulsar" in printed.stdout
    filtered = await call(world, "impact", RUN, "--namespace", "public/default")
    assert filtered.stdout == f"no topic matches these filters in run {RUN}\n"


async def test_the_status_is_the_same_as_of_the_direct_command(world: ApiWorld) -> None:
    await world.upkeep.fill()
    async with world.upkeep.cluster.connected("") as client:
        await Runs(client.store, ROOT).pause_kind(RunKind.PLACEMENT, "me", EPOCH_MS + 60_000)
        window = MaintenanceWindow("c", (BookieId("c"),), "me", EPOCH_MS, EPOCH_MS + 60_000, False, "disk")
        await MaintenanceWindows(client.store, ROOT).start(window)
        await client.ports.tasks.switches.set_lost_bookie_delay_s(600)
        direct = await anext(status.status_documents(client, 5.0))
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
    states = [(row["state"], row["park_reason"]) for row in first["items"] + rest]
    assert states == [("waiting", None), ("in_progress", None), ("parked", "no_live_copy")]
    table = (await call(world, "underreplicated", "list")).stdout
    assert [word in table for word in (f"{ids[0]}  waiting", "in progress", "parked: no_live_copy")] == [True] * 3


async def test_runs_are_listed_and_shown(world: ApiWorld) -> None:
    run_id = await world.start()
    assert [row["run_id"] for row in (await document(world, "audit", "list"))["items"]] == [run_id]
    kind = world.control.status().running[0].kind
    others = [each.value for each in RunKind if each is not kind]
    assert (await document(world, "audit", "list", "--kind", others[0]))["items"] == []
    assert run_id in (await call(world, "audit", "list")).stdout
    (line,) = (await call(world, "audit", "list", "-o", "jsonl")).stdout.splitlines()
    assert (json.loads(line)["kind"], json.loads(line)["run"]["run_id"]) == ("AuditRun", run_id)
    assert (await document(world, "audit", "show", run_id))["run"]["kind"] == kind.value
    lines = (await call(world, "audit", "show", run_id)).stdout.splitlines()
    assert [line.split()[-1] for line in lines if line.startswith("dry run ")] == ["no"]


async def test_bookies_and_windows_are_listed(world: ApiWorld) -> None:
    listed = (await document(world, "bookies"))["items"]
    assert [row["bookie_id"] for row in listed] == [view.bookie_id for view in world.operations.known]
    assert listed[-1]["state"] == "lost"
    lines = (await call(world, "bookies", "-o", "jsonl")).stdout.splitlines()
    assert [json.loads(line) for line in lines] == [
        {"apiVersion": "bkheal/v1", "kind": "Bookie", **row} for row in listed
    ]
    assert "no maintenance window" in (await call(world, "maintenance", "list")).stdout
    assert (await call(world, "maintenance", "list", "-o", "jsonl")).stdout == ""


async def test_windows_start_and_end(world: ApiWorld) -> None:
    words = ("maintenance", "start", "c", "--for", "2h", "--note", "disk")
    assert (await call(world, *words, "--dry-run")).stdout.startswith("losses of c would not be marked until ")
    assert (await document(world, "maintenance", "list"))["items"] == []
    started = await document(world, *words)
    assert (started["bookies"], started["until"], started["dry_run"]) == (["c"], rfc3339(EPOCH_MS + 7_200_000), False)
    (window,) = (await document(world, "maintenance", "list"))["items"]
    assert window == {name: value for name, value in started.items() if name in window}
    assert (await document(world, "maintenance", "end", "c", "--dry-run"))["was_open"] is True
    assert (await call(world, "maintenance", "end", "c")).stdout == "the window of c is ended\n"
    again = await call(world, "maintenance", "end", "c", "-o", "json")
    assert (again.exit_code, json.loads(again.stdout)["was_open"]) == (ExitCode.FAILED, False)
    rows = (await document(world, "changes"))["items"]
    assert [(row["via"], row["action"]) for row in rows[::-1]] == [
        ("http", "maintenance start"),
        ("http", "maintenance end"),
    ]


async def test_a_window_of_a_rack_uses_the_topology_of_the_service(world: ApiWorld) -> None:
    cluster = world.upkeep.cluster
    await TopologyStore(cluster.keeper, await open_cluster(cluster.keeper, ROOT)).write(json.dumps({"c": "/r1"}))
    assert (await document(world, "maintenance", "start", "rack:r1"))["target"] == "rack:/r1"
    unknown = await call(world, "maintenance", "start", "rack:/r2")
    assert "no bookie is in rack /r2; racks with bookies: /r1" in str(unknown.exception)
    assert (await document(world, "maintenance", "end", "rack:/r1"))["was_open"] is True
    here = await call(world, "maintenance", "start", "c", "--topology-file", __file__)
    assert (here.exit_code, "the auditor uses its own" in here.output) == (ExitCode.USAGE, True)


async def test_only_an_administrator_may_hold_back_ledgers_with_one_copy(world: ApiWorld) -> None:
    words = ("maintenance", "start", "c")
    refused = await call(world, *words, "--hold-critical", role=Role.OPERATE)
    assert "administer" in str(refused.exception)
    assert (await call(world, *words, role=Role.OPERATE)).exit_code == ExitCode.OK
    assert (await document(world, *words, "--hold-critical"))["hold_critical"] is True


async def test_placement_debts_are_listed(world: ApiWorld) -> None:
    await world.upkeep.fill()
    debts = PlacementDebts(world.upkeep.cluster.keeper, ROOT)
    for ledger in (9, 11):
        assert await debts.add(PlacementDebt(LedgerId(ledger), EPOCH_MS, (EntryId(0),), "one rack"))
    items = (await document(world, "debts", "list"))["items"]
    assert [(row["ledger_id"], row["state"]) for row in items] == [(9, "marked"), (11, "waiting")]
    page = (await world.operate("GET", "/api/v1/debts?limit=1")).json
    assert (page["items"], page["next_after"]) == (items[:1], 9)
