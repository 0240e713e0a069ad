"""``bkheal decommission`` accepts only bookies that are stopped and that certainly no ledger needs."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from auditor.cli.drains import decommission
from auditor.cli.main import app
from bookie.metadata.bookies.cookies import Cookie, CookieStore
from bookie.metadata.bookies.drains import Drain, Drains
from bookie.metadata.bookies.registration import Registrations
from bookie.metadata.cluster import open_cluster
from bookie.metadata.port import ANY_VERSION
from bookie.metadata.tasks.changes import ChangeRecords
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import BookieId, LedgerId
from tests.worlds.cluster import ROOT, service_info
from tests.worlds.commands import CommandCluster

E = BookieId("e")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> CommandCluster:
    """Bookie e was drained and is stopped; no ledger names it."""
    made = CommandCluster()
    monkeypatch.setattr(decommission, "connected", made.connected)
    monkeypatch.setattr(decommission, "whoami", lambda: "me@host")

    async def prepare() -> None:
        await made.fill()
        await CookieStore(made.keeper, await open_cluster(made.keeper, ROOT)).create(Cookie(E, ("/j",), ("/l",)))
        await Drains(made.keeper, ROOT).start(Drain(E, "me", 1))

    asyncio.run(prepare())
    return made


def call(*words: str, typed: str = "") -> Result:
    return CliRunner().invoke(app, ["decommission", "e", *words, "--metadata-uri", "zk://h:1/ledgers"], input=typed)


async def start(cluster: CommandCluster, *, is_read_only: bool) -> None:
    registrations = Registrations(cluster.keeper, await open_cluster(cluster.keeper, ROOT))
    await registrations.register(E, service_info("e"), is_read_only=is_read_only, takeover_deadline_s=1)


async def records(cluster: CommandCluster) -> tuple[bool, bool, int]:
    """Return whether the cookie and the drain exist, and the number of recorded changes."""
    found = await open_cluster(cluster.keeper, ROOT)
    return (
        await CookieStore(cluster.keeper, found).version(E) is not None,
        E in await Drains(cluster.keeper, ROOT).read(),
        len(await ChangeRecords(cluster.keeper, ROOT, cluster.clock).newest(9)),
    )


ALL = (True, True, 0)


@pytest.mark.parametrize("option", ["--yes", "--dry-run"])
@pytest.mark.parametrize("is_read_only", [False, True])
def test_a_running_bookie_is_refused_in_every_state(cluster: CommandCluster, option: str, is_read_only: bool) -> None:
    asyncio.run(start(cluster, is_read_only=is_read_only))
    refused = call(option)
    assert (refused.exit_code, "e is running" in refused.stderr) == (ExitCode.FAILED, True)
    assert asyncio.run(records(cluster)) == ALL


@pytest.mark.parametrize("option", ["--yes", "--dry-run"])
def test_unreadable_metadata_may_name_the_bookie(cluster: CommandCluster, option: str) -> None:
    async def damage() -> None:
        async with cluster.connected("") as client:
            await client.store.set(client.ports.ledgers.path(LedgerId(8)), b"nonsense", ANY_VERSION)

    asyncio.run(damage())
    refused = call(option)
    assert (refused.exit_code, "1 ledger cannot be read and may name it: 8" in refused.stderr) == (
        ExitCode.PARTIAL,
        True,
    )
    assert asyncio.run(records(cluster)) == ALL


@pytest.mark.parametrize("typed", ["", "\n", "n\n", "e\n"], ids=repr)
def test_any_answer_other_than_yes_changes_nothing(cluster: CommandCluster, typed: str) -> None:
    is_answered = typed in ("\n", "n\n")
    assert call(typed=typed).exit_code == (ExitCode.FAILED if is_answered else ExitCode.USAGE)
    assert asyncio.run(records(cluster)) == ALL


def test_a_bookie_that_starts_during_the_prompt_is_refused(
    cluster: CommandCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def confirmed(question: str, *, is_sure: bool) -> None:
        with ThreadPoolExecutor(1) as pool:  # an event loop is already running in this thread
            pool.submit(asyncio.run, start(cluster, is_read_only=False)).result(10)

    monkeypatch.setattr(decommission, "confirm", confirmed)
    assert call().exit_code == ExitCode.FAILED
    assert asyncio.run(records(cluster)) == ALL


def test_a_bookie_that_starts_while_its_cookie_is_deleted_stays_drained(
    cluster: CommandCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete = CookieStore.delete

    async def started(store: CookieStore, *given: Any) -> None:
        await delete(store, *given)
        await start(cluster, is_read_only=False)

    monkeypatch.setattr(CookieStore, "delete", started)
    refused = call("--yes")
    assert (refused.exit_code, "e is running" in refused.stderr) == (ExitCode.FAILED, True)
    assert asyncio.run(records(cluster)) == (False, True, 1)


def test_a_stopped_bookie_that_no_ledger_names_is_decommissioned(cluster: CommandCluster) -> None:
    assert "would be deleted" in call("--dry-run").stdout
    assert asyncio.run(records(cluster)) == ALL
    assert call("--yes").exit_code == ExitCode.OK
    assert asyncio.run(records(cluster)) == (False, False, 1)
