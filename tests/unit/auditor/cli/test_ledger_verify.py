"""``bkheal ledger verify``: its exit codes. What it finds is in ``tests/unit/auditor/operating``."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from auditor.cli.ledgers import verify
from auditor.cli.main import main
from bookie.metadata.port import StoreUnavailableError
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


def test_a_ledger_of_lost_and_silent_bookies_is_unknown(
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
