"""``bkheal ok-to-stop``: yes only if nothing speaks against it, and nothing is unknown."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from typer.testing import CliRunner

from auditor.cli.cluster import ok_to_stop
from auditor.cli.main import app
from bookie.metadata.bookies.registration import Registrations
from bookie.metadata.cluster import open_cluster
from bookie.metadata.port import ANY_VERSION
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import BookieId, LedgerId
from tests.worlds.cluster import ROOT, service_info
from tests.worlds.commands import CommandCluster
from tests.worlds.ledgers import make_metadata, names


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> CommandCluster:
    """Bookies c and d are registered; every ledger of a and b is marked, and neither is registered."""
    made = CommandCluster()
    monkeypatch.setattr(ok_to_stop, "connected", made.connected)
    asyncio.run(made.fill())
    return made


def asked(*words: str) -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(app, ["ok-to-stop", *words, "-o", "json", "--metadata-uri", "zk://h:1/ledgers"])
    return result.exit_code, json.loads(result.stdout)


async def put(cluster: CommandCluster, ledger_id: int, members: str, missing: str = "", last: int | None = 9) -> None:
    """Create a ledger with two copies, and mark it."""
    async with cluster.connected("") as client:
        metadata = make_metadata((0, members), quorum=(2, 2), last=last)
        await client.ports.ledgers.create(LedgerId(ledger_id), metadata)
        if missing:
            await client.ports.tasks.marking.mark(LedgerId(ledger_id), names(missing))


async def returned(cluster: CommandCluster, *bookies: str) -> None:
    registrations = Registrations(cluster.keeper, await open_cluster(cluster.keeper, ROOT))
    for name in bookies:
        await registrations.register(BookieId(name), service_info(name), is_read_only=False, takeover_deadline_s=1)


async def damage(cluster: CommandCluster, ledger_id: int) -> None:
    async with cluster.connected("") as client:
        await client.store.set(client.ports.ledgers.path(LedgerId(ledger_id)), b"nonsense", ANY_VERSION)


def test_what_cannot_be_read_is_no_yes_and_has_its_own_exit_code(cluster: CommandCluster) -> None:
    assert asked("c") == (ExitCode.OK, asked("c")[1])
    asyncio.run(damage(cluster, 7))
    code, document = asked("c")
    assert (code, document["ok"], document["unreadable_ledgers"]) == (ExitCode.PARTIAL, False, 1)
    asyncio.run(put(cluster, 10, "c d"))
    assert asked("c", "d")[0] == ExitCode.FAILED, "a certain no counts more"


def test_bookies_that_returned_may_hold_the_only_copies_of_what_is_still_marked(cluster: CommandCluster) -> None:
    asyncio.run(returned(cluster, "a", "b"))
    for stopping in (("a",), ("a", "b")):
        code, document = asked(*stopping)
        assert (code, document["ledgers_at_risk"], document["worst"][0]["copies_left"]) == (ExitCode.FAILED, 3, 0)
    asyncio.run(put(cluster, 10, "c d", missing="d"))
    assert asked("d")[0] == ExitCode.OK, "the other copy is certain"
    assert asked("c")[0] == ExitCode.FAILED, "and it is the only one that is"
