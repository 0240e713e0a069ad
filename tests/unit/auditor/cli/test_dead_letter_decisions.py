"""``bkheal dead-letters accept-loss``, ``drop`` and ``retry``: confirmation, outcomes, and exit codes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from auditor.cli import changing
from auditor.cli.dead_letters import decision, pages, retry
from auditor.cli.exit_codes import exit_code_of
from auditor.cli.main import app
from auditor.safety.dead_letters import DeadLetterOutcome, DeadLetterResult, DeadLetters
from bookie.metadata.nodes import put
from bookie.metadata.port import AccessDeniedError, WriteOutcomeUnknownError
from bookie.metadata.tasks.decisions import Decisions
from bookie.metadata.tasks.parked import ParkedTasks
from bookie.model.errors import BkhealError
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import LedgerId
from tests.worlds.cluster import ROOT
from tests.worlds.commands import CommandCluster
from tests.worlds.ledgers import make_metadata
from tests.worlds.pulsar_nodes import MESSAGES

URI = "zk://h:1/ledgers"


def ran(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> CommandCluster:
    made = CommandCluster()
    ran(made.fill())
    monkeypatch.setattr(pages, "connected", made.connected)
    for module in (decision, retry):
        monkeypatch.setattr(module, "connected", made.connected)
        monkeypatch.setattr(module, "whoami", lambda: "me@host")
    return made


def call(*words: str, typed: str | None = None) -> Result:
    return CliRunner().invoke(app, ["dead-letters", *words, "--metadata-uri", URI], input=typed)


def outcomes(result: Result) -> dict[int, str]:
    return {row["ledger_id"]: row["outcome"] for row in json.loads(result.stdout)["ledgers"]}


ACCEPT = ("accept-loss", "7", "8", "--reason", "fire in the\nserver room")


def test_several_losses_are_accepted_and_listed(cluster: CommandCluster) -> None:
    result = call(*ACCEPT, "--yes", "-o", "json")
    document = json.loads(result.stdout)
    assert (result.exit_code, outcomes(result)) == (ExitCode.OK, {7: "accepted", 8: "accepted"})
    assert (document["by"], document["reason"]) == ("me@host", "fire in the server room")
    lost = [{"first_entry_id": 0, "last_entry_id": 9, "positions": [0, 1], "bookies": ["a", "b"], "denials": []}]
    lost[0] |= {"entry_count": 10, "entries": [[0, 9]], "shared_positions": []}
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
    again = call(*ACCEPT, "-o", "json")  # no confirmation is needed
    assert (again.exit_code, outcomes(again)) == (ExitCode.OK, {7: "already_accepted", 8: "already_accepted"})


async def replace(cluster: CommandCluster, ledger_id: int, *fragments: tuple[int, str], last: int | None) -> None:
    async with cluster.connected("") as client:
        await client.ports.ledgers.delete(LedgerId(ledger_id))
        metadata = make_metadata(*fragments, quorum=(2, 2), last=last)
        await client.ports.ledgers.create(LedgerId(ledger_id), metadata)


def test_the_task_stays_for_a_missing_bookie_that_no_audit_reported(cluster: CommandCluster) -> None:
    ran(replace(cluster, 7, (0, "a b"), (5, "c restarting"), last=9))
    accepted = call(*ACCEPT, "--yes", "-o", "json")
    assert outcomes(accepted) == {7: "accepted_task_stays", 8: "accepted"}
    assert ran(cluster.marked()) == [7, 9]


def test_what_a_writer_may_still_change_does_not_count_as_lost(cluster: CommandCluster) -> None:
    ran(replace(cluster, 7, (0, "a b"), (5, "c d"), last=None))
    refused = call("accept-loss", "7", "--reason", "x", "--yes")
    assert (refused.exit_code, "ledger 7 is not closed" in refused.stdout) == (ExitCode.FAILED, True)
    ran(replace(cluster, 7, (0, "a b"), (5, "a b"), (8, "c d"), last=None))
    accepted = call("accept-loss", "7", "--reason", "x", "--yes", "-o", "json")
    (row,) = json.loads(accepted.stdout)["ledgers"]
    assert (row["outcome"], [part["last_entry_id"] for part in row["lost"]]) == ("accepted_task_stays", [4])


def test_a_ledger_that_changed_in_the_meantime_is_a_failure(
    cluster: CommandCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def changed(letters: DeadLetters, ledger_id: LedgerId, reason: str) -> DeadLetterResult:
        return DeadLetterResult(ledger_id, DeadLetterOutcome.CHANGED)

    monkeypatch.setattr(DeadLetters, "accept", changed)
    assert call(*ACCEPT, "--yes").exit_code == ExitCode.FAILED


def test_nothing_is_changed_if_one_ledger_is_refused(cluster: CommandCluster) -> None:
    for words in (("accept-loss", "7", "9", "--reason", "x"), ("drop", "9", "7")):
        result = call(*words, "--yes", "-o", "json")
        assert (result.exit_code, outcomes(result)) == (ExitCode.FAILED, {7: "not_tried", 9: "refused"})
        assert "not a dead letter" in result.stdout
    assert ran(cluster.marked()) == [7, 8, 9]


def test_invalid_usage_is_refused_before_the_store_is_contacted(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (decision, pages, retry):
        monkeypatch.setattr(module, "connected", None)
    for words in (
        ("accept-loss", "7", "--yes"),
        ("accept-loss", "7", "--yes", "--reason", "  "),
        ("accept-loss", "7", "--yes", "--reason", "x" * 501),
        ("drop", "--yes"),
        ("drop", "-1", "--yes"),
        ("drop", "seven", "--yes"),
    ):
        assert call(*words).exit_code == ExitCode.USAGE, words


def test_without_a_terminal_the_yes_option_is_needed(cluster: CommandCluster) -> None:
    result = call(*ACCEPT, typed="7\n8\n")
    assert (result.exit_code, "--yes" in result.stderr) == (ExitCode.USAGE, True)
    assert ran(cluster.marked()) == [7, 8, 9]


@pytest.mark.parametrize(
    ("typed", "left"), [("7\n8\n", [9]), ("7\n7\n", [7, 8, 9]), ("y\n", [7, 8, 9]), ("", [7, 8, 9])]
)
def test_at_a_terminal_each_ledger_id_must_be_typed(
    cluster: CommandCluster, monkeypatch: pytest.MonkeyPatch, typed: str, left: list[int]
) -> None:
    monkeypatch.setattr(changing, "_is_terminal", lambda: True)
    result = call(*ACCEPT, typed=typed)
    assert (result.exit_code == ExitCode.OK) is (left == [9])
    assert ran(cluster.marked()) == left


def test_a_dry_run_changes_nothing(cluster: CommandCluster) -> None:
    result = call(*ACCEPT, "--dry-run")
    assert result.exit_code == ExitCode.OK
    assert (
        "ledger 7: the loss would be accepted, and the task would be closed (lost: 10 entries of 0..9: 0..9 on a b)"
        in result.stdout
    )
    assert ran(cluster.marked()) == [7, 8, 9]


def test_a_ledger_locked_by_a_worker_has_its_own_exit_code_and_the_others_are_changed(cluster: CommandCluster) -> None:
    ran(cluster.lock(7))
    result = call("drop", "7", "8", "--yes", "-o", "json")
    assert (result.exit_code, outcomes(result)) == (ExitCode.BUSY, {7: "locked", 8: "dropped"})
    assert ran(cluster.marked()) == [7, 9]


def test_a_second_drop_changes_nothing_and_an_acceptance_is_withdrawn(cluster: CommandCluster) -> None:
    assert outcomes(call("drop", "7", "--yes", "-o", "json")) == {7: "dropped"}
    again = call("drop", "7", "--yes", "-o", "json")
    assert (again.exit_code, outcomes(again)) == (ExitCode.OK, {7: "already_dropped"})
    call("accept-loss", "8", "--reason", "x", "--yes")
    withdrawn = call("drop", "8", "--yes", "-o", "json")
    assert (withdrawn.exit_code, outcomes(withdrawn)) == (ExitCode.OK, {8: "withdrawn"})
    assert call("list", "--accepted").stdout == "no loss is accepted\n"


def test_a_lost_reply_ends_the_command(cluster: CommandCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    async def lost(*_: Any) -> None:
        raise WriteOutcomeUnknownError("the answer was lost")

    monkeypatch.setattr(DeadLetters, "accept", lost)
    result = call(*ACCEPT, "--yes", "-o", "json")
    assert (result.exit_code, outcomes(result)) == (ExitCode.STORE_UNREACHABLE, {7: "unknown", 8: "not_tried"})
    assert "repeat the command" in result.stdout


@pytest.mark.parametrize("words", [ACCEPT, ("drop", "7", "8")], ids=["accept-loss", "drop"])
def test_changes_before_a_refusal_of_the_store_are_shown(
    cluster: CommandCluster, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    unpark = ParkedTasks.unpark

    async def refused(parked: ParkedTasks, ledger_id: LedgerId) -> None:
        if ledger_id == 8:
            raise AccessDeniedError("the store refused it")
        await unpark(parked, ledger_id)

    monkeypatch.setattr(ParkedTasks, "unpark", refused)
    ran(cluster.add_marked(10, MESSAGES, is_parked=True))
    result = call(*words, "10", "--yes", "-o", "json")
    assert outcomes(result) == {7: "accepted" if words == ACCEPT else "dropped", 8: "failed", 10: "not_tried"}
    assert (result.exit_code, "the store refused it" in result.stderr) == (ExitCode.FAILED, True)
    assert ran(cluster.marked()) == [9, 10]


def test_decisions_are_records_of_the_cluster(cluster: CommandCluster) -> None:
    call("accept-loss", "7", "--reason", "x", "--yes")

    async def read() -> list[int]:
        async with cluster.connected(URI) as client:
            return [decision.ledger_id for decision in await Decisions(client.store, client.cluster.root).list()]

    assert ran(read()) == [7]


def test_a_parked_ledger_is_listed_with_its_topic(cluster: CommandCluster) -> None:
    asyncio.run(cluster.add_marked(10, MESSAGES, is_parked=True))
    (row,) = [row for row in json.loads(call("list", "-o", "json").stdout)["items"] if row["ledger_id"] == 10]
    assert (row["topic"], row["component"]) == ("persistent://t/n/orders", "managed-ledger")
    assert "persistent://t/n/orders" in call("list").stdout


@pytest.mark.usefixtures("cluster")
def test_a_retry_of_a_ledger_that_is_not_parked_refers_to_the_list() -> None:
    result = call("retry", "4711", "--yes")
    assert result.exit_code == ExitCode.FAILED
    assert "4711" in result.stderr
    assert "`bkheal dead-letters list`" in result.stderr


def test_a_retry_skips_missing_letters_unless_they_are_named(
    cluster: CommandCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    parked = ParkedTasks(cluster.keeper, ROOT)
    records = ran(parked.list())

    def repaired_meanwhile(question: str, *, is_sure: bool) -> None:
        ran(parked.unpark(LedgerId(8)))

    monkeypatch.setattr(retry, "confirm", repaired_meanwhile)
    for words in (("--all",), ("--reason", "no_live_copy")):
        for record in records:
            ran(parked.park(record))
        result = call("retry", *words, "-o", "json")
        assert (result.exit_code, json.loads(result.stdout)["ledgers"]) == (ExitCode.OK, [7])
        assert ran(parked.ids()) == frozenset()
    for record in records:
        ran(parked.park(record))
    result = call("retry", "7", "8")
    assert (result.exit_code, "not parked: 8; nothing was changed" in result.stderr) == (ExitCode.FAILED, True)
    assert ran(parked.ids()) == {7}


def test_a_retry_removes_unreadable_records_that_can_be_deleted(cluster: CommandCluster) -> None:
    parked = ParkedTasks(cluster.keeper, ROOT)
    ran(put(cluster.keeper, parked.path(LedgerId(8)), b'{"format":99}'))
    assert [row["ledger_id"] for row in json.loads(call("list", "-o", "json").stdout)["items"]] == [7]
    assert json.loads(call("retry", "--reason", "no_live_copy", "--dry-run", "-o", "json").stdout)["ledgers"] == [7]
    ran(put(cluster.keeper, parked.path(LedgerId(6)) + "/x", b""))
    result = call("retry", "--all", "--yes")
    assert (result.exit_code, ran(parked.ids())) == (ExitCode.OK, {6})
    assert result.stdout.splitlines() == [
        "2 parked ledgers will be tried again",
        "1 is not parked any more, or its record cannot be deleted: 6",
    ]
    assert call("retry", "6", "--yes").exit_code == ExitCode.FAILED
    ran(put(cluster.keeper, parked.path(LedgerId(8)), b'{"format":99}'))
    assert (call("retry", "8", "--yes").exit_code, ran(parked.ids())) == (ExitCode.OK, {6})


@pytest.mark.parametrize("error", [AccessDeniedError("refused"), WriteOutcomeUnknownError("no answer")], ids=repr)
def test_letters_retried_before_an_error_are_shown(
    cluster: CommandCluster, monkeypatch: pytest.MonkeyPatch, error: BkhealError
) -> None:
    unpark = ParkedTasks.unpark

    async def failing(parked: ParkedTasks, ledger_id: LedgerId) -> None:
        if ledger_id == 8:
            raise error
        await unpark(parked, ledger_id)

    ran(cluster.add_marked(10, MESSAGES, is_parked=True))
    with monkeypatch.context() as patch:
        patch.setattr(ParkedTasks, "unpark", failing)
        ended = call("retry", "7", "8", "10", "--yes", "-o", "json")
        assert (ended.exit_code, json.loads(ended.stdout)["ledgers"]) == (exit_code_of(error), [7])
        assert (str(error) in ended.stderr, "8, 10" in ended.stderr) == (True, True)
        assert call("retry", "8", "10", "--yes").exception is error
    assert json.loads(call("retry", "8", "10", "--yes", "-o", "json").stdout)["ledgers"] == [8, 10]


@pytest.mark.parametrize("damage", [b'{"format":99}', b"\xff\x00", b""], ids=repr)
def test_an_unreadable_record_is_reported_as_unreadable(cluster: CommandCluster, damage: bytes) -> None:
    parked = ParkedTasks(cluster.keeper, ROOT)
    ran(put(cluster.keeper, parked.path(LedgerId(7)), damage))
    shown = call("show", "7")
    assert (shown.exit_code, shown.stdout) == (ExitCode.FAILED, "")
    assert ("record of ledger 7 cannot be read" in shown.stderr, "is not parked" in shown.stderr) == (True, False)
    assert "bkheal dead-letters retry 7" in shown.stderr
    assert "no_live_copy" in call("show", "8").stdout
    assert call("retry", "7", "--yes").exit_code == ExitCode.OK
    assert "is not parked" in call("show", "7").stderr
