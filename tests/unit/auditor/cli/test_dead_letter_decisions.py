"""``bkheal dead-letters accept-loss`` and ``drop``: confirmation, outcomes for each ledger, and exit codes."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from auditor.cli.cluster import changing, dead_letters
from auditor.cli.main import app
from auditor.safety.dead_letters import DeadLetters
from bookie.client.ports import ClientPorts
from bookie.metadata.bookies.registration import Registrations
from bookie.metadata.cluster import open_cluster
from bookie.metadata.ledgers.ledgers import LedgerStore
from bookie.metadata.port import WriteOutcomeUnknownError
from bookie.metadata.store.memory import MemoryCell, MemoryStore
from bookie.metadata.tasks.decisions import Decisions
from bookie.metadata.tasks.parked import ParkedTask, ParkedTasks, ParkReason
from bookie.metadata.tasks.underreplication import UnderReplication
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import BookieId, LedgerId
from bookie.runtime.clock import SystemClock
from bookie.wire.memory import MemoryNetwork, MemoryTransport
from tests.worlds.cluster import ROOT, formatted, service_info
from tests.worlds.ledgers import make_metadata, names
from tests.worlds.repair import Bookies

URI = "zk://h:1/ledgers"


class Cluster:
    """A cluster whose commands run in this process. Every command has a session of its own."""

    def __init__(self) -> None:
        self.cell = MemoryCell()

    @asynccontextmanager
    async def connected(self, uri: str, **_: Any) -> AsyncIterator[Any]:
        store = MemoryStore(self.cell)
        cluster, clock = await open_cluster(store, ROOT), SystemClock()
        ports = ClientPorts(
            ledgers=LedgerStore(store, cluster, random.Random(1)),
            registrations=Registrations(store, cluster),
            tasks=UnderReplication(store, cluster, clock),
            transport=MemoryTransport(Bookies(), MemoryNetwork()),
            clock=clock,
            rng=random.Random(1),
        )
        yield SimpleNamespace(ports=ports, store=store, cluster=cluster, parked=ParkedTasks(store, cluster.root))
        await store.close()

    async def fill(self) -> None:
        """Ledgers 7 and 8 lost every copy, and are parked; 9 is marked, and not parked."""
        self.keeper = MemoryStore(self.cell)  # its registration must outlive the commands
        cluster = await formatted(self.keeper)
        registrations = Registrations(self.keeper, cluster)
        for name in ("c", "d"):
            await registrations.register(BookieId(name), service_info(name), is_read_only=False, takeover_deadline_s=1)
        async with self.connected(URI) as client:
            await client.ports.tasks.initialize()
            for number in (7, 8, 9):
                await client.ports.ledgers.create(LedgerId(number), make_metadata((0, "a b"), quorum=(2, 2), last=9))
                await client.ports.tasks.marking.mark(LedgerId(number), names("a b"))
            for number in (7, 8):
                park = ParkedTask(LedgerId(number), ParkReason.NO_LIVE_COPY, "evidence", 1, frozenset(), 0)
                await client.parked.park(park)

    async def marked(self) -> list[int]:
        async with self.connected(URI) as client:
            return [task.ledger_id for task in await client.ports.tasks.list()]

    async def lock(self, ledger_id: int) -> None:
        """As a worker that lives on."""
        tasks = UnderReplication(self.keeper, await open_cluster(self.keeper, ROOT), SystemClock())
        assert await tasks.locks.lock(LedgerId(ledger_id), "worker") is not None


def ran(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    ran(made.fill())
    monkeypatch.setattr(dead_letters, "connected", made.connected)
    monkeypatch.setattr(dead_letters, "whoami", lambda: "me@host")
    return made


def call(*words: str, typed: str | None = None) -> Result:
    return CliRunner().invoke(app, ["dead-letters", *words, "--metadata-uri", URI], input=typed)


def outcomes(result: Result) -> dict[int, str]:
    return {row["ledger_id"]: row["outcome"] for row in json.loads(result.stdout)["ledgers"]}


ACCEPT = ("accept-loss", "7", "8", "--reason", "fire in the\nserver room")


def test_several_losses_are_accepted_and_listed(cluster: Cluster) -> None:
    result = call(*ACCEPT, "--yes", "-o", "json")
    document = json.loads(result.stdout)
    assert (result.exit_code, outcomes(result)) == (ExitCode.OK, {7: "accepted", 8: "accepted"})
    assert (document["by"], document["reason"]) == ("me@host", "fire in the server room")
    lost = [{"first_entry_id": 0, "last_entry_id": 9, "positions": [0, 1], "bookies": ["a", "b"]}]
    assert document["ledgers"][0]["lost"] == lost
    assert ran(cluster.marked()) == [9]
    (first, _) = json.loads(call("list", "--accepted", "-o", "json").stdout)["items"]
    assert (first["ledger_id"], first["by"], first["park_reason"], first["lost"]) == (
        7,
        "me@host",
        "no_live_copy",
        lost,
    )
    assert "fire in the server room" in call("list", "--accepted").stdout
    again = call(*ACCEPT, "-o", "json")  # nothing to confirm
    assert (again.exit_code, outcomes(again)) == (ExitCode.OK, {7: "already_accepted", 8: "already_accepted"})


def test_nothing_is_changed_if_one_ledger_is_refused(cluster: Cluster) -> None:
    for words in (("accept-loss", "7", "9", "--reason", "x"), ("drop", "9", "7")):
        result = call(*words, "--yes", "-o", "json")
        assert (result.exit_code, outcomes(result)) == (ExitCode.FAILED, {7: "not_tried", 9: "refused"})
        assert "no dead letter" in result.stdout
    assert ran(cluster.marked()) == [7, 8, 9]


def test_wrong_usage_is_refused_before_the_store_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "connected", None)
    for words in (
        ("accept-loss", "7", "--yes"),
        ("accept-loss", "7", "--yes", "--reason", "  "),
        ("accept-loss", "7", "--yes", "--reason", "x" * 501),
        ("drop", "--yes"),
        ("drop", "-1", "--yes"),
        ("drop", "seven", "--yes"),
    ):
        assert call(*words).exit_code == ExitCode.USAGE, words


def test_without_a_terminal_yes_is_needed(cluster: Cluster) -> None:
    result = call(*ACCEPT, typed="7\n8\n")
    assert (result.exit_code, "--yes" in result.stderr) == (ExitCode.USAGE, True)
    assert ran(cluster.marked()) == [7, 8, 9]


@pytest.mark.parametrize(
    ("typed", "left"), [("7\n8\n", [9]), ("7\n7\n", [7, 8, 9]), ("y\n", [7, 8, 9]), ("", [7, 8, 9])]
)
def test_at_a_terminal_each_ledger_id_is_typed(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, typed: str, left: list[int]
) -> None:
    monkeypatch.setattr(changing, "_is_terminal", lambda: True)
    result = call(*ACCEPT, typed=typed)
    assert (result.exit_code == ExitCode.OK) is (left == [9])
    assert ran(cluster.marked()) == left


def test_a_dry_run_changes_nothing(cluster: Cluster) -> None:
    result = call(*ACCEPT, "--dry-run")
    assert result.exit_code == ExitCode.OK
    assert (
        "ledger 7: the loss would be accepted, and the task would be closed (entries in 0..9 on a b)" in result.stdout
    )
    assert ran(cluster.marked()) == [7, 8, 9]


def test_the_lock_of_a_worker_is_its_own_exit_code_and_the_others_are_changed(cluster: Cluster) -> None:
    ran(cluster.lock(7))
    result = call("drop", "7", "8", "--yes", "-o", "json")
    assert (result.exit_code, outcomes(result)) == (ExitCode.BUSY, {7: "locked", 8: "dropped"})
    assert ran(cluster.marked()) == [7, 9]


def test_dropping_again_and_withdrawing(cluster: Cluster) -> None:
    assert outcomes(call("drop", "7", "--yes", "-o", "json")) == {7: "dropped"}
    again = call("drop", "7", "--yes", "-o", "json")
    assert (again.exit_code, outcomes(again)) == (ExitCode.OK, {7: "already_dropped"})
    call("accept-loss", "8", "--reason", "x", "--yes")
    withdrawn = call("drop", "8", "--yes", "-o", "json")
    assert (withdrawn.exit_code, outcomes(withdrawn)) == (ExitCode.OK, {8: "withdrawn"})
    assert call("list", "--accepted").stdout == "no loss is accepted\n"


def test_an_answer_that_is_lost_ends_the_command(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    async def lost(*_: Any) -> None:
        raise WriteOutcomeUnknownError("the answer was lost")

    monkeypatch.setattr(DeadLetters, "accept", lost)
    result = call(*ACCEPT, "--yes", "-o", "json")
    assert (result.exit_code, outcomes(result)) == (ExitCode.STORE_UNREACHABLE, {7: "unknown", 8: "not_tried"})
    assert "repeat the command" in result.stdout


def test_decisions_are_records_of_the_cluster(cluster: Cluster) -> None:
    call("accept-loss", "7", "--reason", "x", "--yes")

    async def read() -> list[int]:
        async with cluster.connected(URI) as client:
            return [decision.ledger_id for decision in await Decisions(client.store, client.cluster.root).list()]

    assert ran(read()) == [7]
