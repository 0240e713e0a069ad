"""``bkheal ledger verify``: its exit codes. The tests of its findings are in ``tests/unit/auditor/operating``."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from typing_extensions import override

from auditor.cli.ledgers import verify
from auditor.cli.main import main
from auditor.operating import verifying
from bookie.metadata.ledgers.ledgers import LedgerStore, NoSuchLedgerError, Versioned
from bookie.metadata.ledgers.serde_message import UnreadableMetadataError
from bookie.metadata.port import StoreUnavailableError, WriteOutcomeUnknownError
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import LedgerId
from tests.worlds.commands import CommandCluster
from tests.worlds.ledgers import make_metadata

EMPTY, ABSENT = LedgerId(20), LedgerId(21)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> CommandCluster:
    made = CommandCluster()
    asyncio.run(made.fill())
    asyncio.run(_add(made))
    monkeypatch.setattr(verify, "connected", made.connected)
    return made


async def _add(cluster: CommandCluster) -> None:
    async with cluster.connected("") as client:
        await client.ports.ledgers.create(EMPTY, make_metadata((0, "c d"), quorum=(2, 2), last=-1))
        await client.ports.ledgers.create(ABSENT, make_metadata((0, "a c"), quorum=(2, 2), last=9))


def exit_code(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["bkheal", "ledger", "verify", *words, "--metadata-uri", "zk://h:1/ledgers"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_a_ledger_on_lost_and_unreachable_bookies_is_unknown(
    cluster: CommandCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(monkeypatch, str(EMPTY)) == ExitCode.OK
    assert "there is no copy to verify" in capsys.readouterr().out
    assert exit_code(monkeypatch, str(ABSENT), "--mark", "-o", "json") == ExitCode.PARTIAL
    (row,) = json.loads(capsys.readouterr().out)["ledgers"]
    assert [(each["bookie_id"], each["state"], each["unknown"]) for each in row["bookies"]] == [
        ("a", "lost", 10),
        ("c", "writable", 10),
    ]
    assert row["without_good_copy"]["perhaps_on"] == ["a", "c"]
    assert row["mark"] == {"outcome": "marked", "bookies": ["a"], "held_back": []}
    assert exit_code(monkeypatch, "7", "--mark") == ExitCode.PARTIAL
    assert "marked for repair of a, b already" in capsys.readouterr().out


def test_without_a_store_nothing_is_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    @asynccontextmanager
    async def connected(uri: str) -> AsyncIterator[Any]:
        if uri:
            raise StoreUnavailableError("no answer")
        yield None

    monkeypatch.setattr(verify, "connected", connected)
    assert exit_code(monkeypatch, "7") == ExitCode.STORE_UNREACHABLE
    assert exit_code(monkeypatch) == ExitCode.USAGE


class _Failing(LedgerStore):
    """A store that reads the metadata of one ledger once, for the check of the ids; each later read raises an error."""

    failing: LedgerId
    error: Exception
    is_checked = False

    @override
    async def read(self, ledger_id: LedgerId) -> Versioned:
        if ledger_id == self.failing and self.is_checked:
            raise self.error
        self.is_checked = self.is_checked or ledger_id == self.failing
        return await super().read(ledger_id)


def fail_later(
    cluster: CommandCluster, monkeypatch: pytest.MonkeyPatch, error: Exception, failing: LedgerId = ABSENT
) -> None:
    @asynccontextmanager
    async def connected(uri: str) -> AsyncIterator[Any]:
        async with cluster.connected(uri) as client:
            ledgers = _Failing(client.store, client.cluster, random.Random(1))
            ledgers.failing, ledgers.error = failing, error
            client.ports = replace(client.ports, ledgers=ledgers)
            yield client

    monkeypatch.setattr(verify, "connected", connected)


@pytest.mark.parametrize(
    "error",
    [NoSuchLedgerError(f"ledger {ABSENT} does not exist"), UnreadableMetadataError("wrong magic")],
    ids=["deleted", "unreadable"],
)
def test_a_ledger_that_became_unreadable_does_not_affect_the_results_of_others(
    error: Exception, cluster: CommandCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_later(cluster, monkeypatch, error)
    assert exit_code(monkeypatch, str(EMPTY), str(ABSENT), "7", "-o", "json") == ExitCode.FAILED
    shown = json.loads(capsys.readouterr().out)
    assert [row["ledger_id"] for row in shown["ledgers"]] == [EMPTY, 7]
    assert shown["not_verified"] == [{"ledger_id": ABSENT, "reason": str(error)}]
    assert exit_code(monkeypatch, str(EMPTY), str(ABSENT), "7") == ExitCode.FAILED
    assert f"ledger {ABSENT}: not verified: {error}" in capsys.readouterr().out


def test_ledgers_verified_before_the_store_stopped_answering_are_printed(
    cluster: CommandCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_later(cluster, monkeypatch, StoreUnavailableError("no answer"))
    assert exit_code(monkeypatch, str(EMPTY), str(ABSENT), "7", "-o", "json") == ExitCode.STORE_UNREACHABLE
    printed = capsys.readouterr()
    shown = json.loads(printed.out)
    assert [row["ledger_id"] for row in shown["ledgers"]] == [EMPTY]
    assert [row["ledger_id"] for row in shown["not_verified"]] == [ABSENT, 7]
    assert "no answer" in printed.err


def test_copies_are_shown_even_if_the_outcome_of_the_mark_is_unknown(
    cluster: CommandCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def mark(client: Any, actor: Any, result: Any) -> str:
        raise WriteOutcomeUnknownError("the answer was lost")

    monkeypatch.setattr(verifying, "mark", mark)
    assert exit_code(monkeypatch, str(ABSENT), "7", "--mark", "-o", "json") == ExitCode.UNAVAILABLE
    shown = json.loads(capsys.readouterr().out)
    assert [(row["ledger_id"], row["mark"]["outcome"]) for row in shown["ledgers"]] == [(ABSENT, "unknown")]
    assert [row["ledger_id"] for row in shown["not_verified"]] == [7]
    assert exit_code(monkeypatch, str(ABSENT), "--mark") == ExitCode.UNAVAILABLE
    assert "unknown whether the ledger is marked" in capsys.readouterr().out
