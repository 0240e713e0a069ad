"""``bkheal progress``: a single output, repeated outputs, and unknown values."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from auditor.cli.cluster import progress
from auditor.cli.main import app
from auditor.cli.output import StreamFormat
from bookie.metadata.tasks.reservations import Reservation, Reservations
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import BookieId, EntryId, LedgerId
from tests.worlds.cluster import ROOT
from tests.worlds.commands import CommandCluster, marked_ledger, repair_watch
from tests.worlds.repair import a_world
from tests.worlds.virtual_time import in_virtual_time


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> CommandCluster:
    made = CommandCluster()
    asyncio.run(made.fill())
    monkeypatch.setattr(progress, "connected", made.connected)
    return made


def call(*words: str) -> Result:
    return CliRunner().invoke(app, ["progress", *words, "--metadata-uri", "zk://h:1/ledgers"])


async def in_flight(cluster: CommandCluster) -> None:
    await cluster.lock(9)
    reservation = Reservation(EntryId(0), 0, BookieId("c"), "1", EntryId(5))
    await Reservations(cluster.keeper, ROOT).reserve(LedgerId(9), "t-1", [reservation])


def test_progress_is_printed_as_one_document(cluster: CommandCluster) -> None:
    asyncio.run(in_flight(cluster))
    document = json.loads(call("-o", "json").stdout)
    assert (document["kind"], document["backlog"]["ledgers"]) == ("RepairProgress", 3)
    assert (document["waiting"], document["in_flight_ledgers"], document["parked"]) == (0, 1, {"no_live_copy": 2})
    (flight,) = document["in_flight"]
    assert (flight["ledger_id"], flight["worker"]) == (9, "worker-1")
    assert flight["copies"][0]["entries_done"] == 5
    assert (document["ledgers_per_second"], document["eta_seconds"]) == (None, None)


def test_progress_as_text_shows_an_unknown_rate(cluster: CommandCluster) -> None:
    asyncio.run(in_flight(cluster))
    text = call().stdout
    for line in (
        "backlog     3 ledgers: 0 waiting, 1 in progress, 2 parked\n",
        "            no_live_copy: 3 ledgers\n",
        "parked      2 no_live_copy\n",
        "in progress ledger 9 by worker-1 (no_live_copy): to c 5 of 10 entries",
        "rate        unknown\n",
        "remaining   unknown\n",
    ):
        assert line in text


def test_parked_ledgers_remain_when_nothing_else_does(cluster: CommandCluster) -> None:
    document = json.loads(call("-o", "json").stdout) | {"eta_seconds": 0}
    assert "remaining   only parked ledgers" in progress.lines(document)
    assert "remaining   nothing" in progress.lines(document | {"parked": {}})


@pytest.mark.parametrize("interval", ["0", "0.1", "soon"])
def test_an_invalid_interval_is_a_usage_error(interval: str) -> None:
    assert call("--watch", "--interval", interval).exit_code == ExitCode.USAGE


@pytest.fixture
def two_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """End a watch after its second output."""
    real = progress.progress_documents

    async def progress_documents(*arguments: Any) -> AsyncIterator[dict[str, Any]]:
        count = 0
        async for document in real(*arguments):
            yield document
            count += 1
            if count == 2:
                return

    monkeypatch.setattr(progress, "progress_documents", progress_documents)


@pytest.mark.usefixtures("two_outputs")
def test_a_watch_prints_a_line_for_each_update_without_a_terminal(cluster: CommandCluster) -> None:
    first, second = call("--watch", "--interval", "0.5").stdout.splitlines()
    assert "backlog 3 (no_live_copy 3), 0 in progress, 2 parked, rate unknown, remaining unknown" in first
    assert "rate 0.0 ledgers/min" in second
    assert second.endswith("remaining unknown")


@pytest.mark.usefixtures("two_outputs")
def test_a_watch_prints_each_document_on_one_line(cluster: CommandCluster) -> None:
    documents = [json.loads(line) for line in call("--watch", "--interval", "0.5", "-o", "json").stdout.splitlines()]
    assert [document["kind"] for document in documents] == ["RepairProgress"] * 2
    assert documents[1]["measured_seconds"] >= 0.5


@pytest.mark.usefixtures("two_outputs")
def test_a_watch_refreshes_in_place_on_a_terminal(
    cluster: CommandCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    progress.progress("zk://h:1/ledgers", None, StreamFormat.TABLE, True, 0.5)
    assert "\x1b[1A" in capsys.readouterr().out  # the cursor moves up over the text of the first output


@in_virtual_time
async def test_a_watch_shows_the_rate_and_the_remaining_time_while_ledgers_are_completed() -> None:
    async with a_world("a b t") as world:
        for number in range(1, 5):
            await marked_ledger(world, number, "a x", "x")
        progress_documents = progress.progress_documents(repair_watch(world), world.clock, 10.0)
        await anext(progress_documents)
        held = await world.tasks.locks.lock(LedgerId(1), "worker-1")
        assert held is not None
        await world.tasks.locks.complete(held)
        document = await anext(progress_documents)
        assert document["ledgers_per_second"] == pytest.approx(0.1)
        assert document["eta_seconds"] == pytest.approx(30.0)
        text = "\n".join(progress.lines(document))
        assert "rate        6.0 ledgers/min, about 100 B/s, over 10.0 s" in text
        assert "remaining   about 30.0 s" in text
        await world.tasks.switches.disable()
        assert "recovery DISABLED" in progress.one_line(await anext(progress_documents))
