"""``bkheal recover`` accepts only bookies that are certainly lost, and marks all their ledgers that can be read."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
from typer.testing import CliRunner, Result

from auditor.cli.cluster import recovery
from auditor.cli.main import app
from bookie.metadata.bookies.cookies import Cookie, CookieStore
from bookie.metadata.bookies.registration import Registrations
from bookie.metadata.cluster import open_cluster
from bookie.metadata.port import ANY_VERSION
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import BookieId, LedgerId
from tests.worlds.cluster import ROOT, service_info
from tests.worlds.commands import CommandCluster
from tests.worlds.ledgers import make_metadata

MARKED = [7, 8, 9]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> CommandCluster:
    """Bookies c and d are registered, and ledger 10 of the lost bookies a and c is not marked yet."""
    made = CommandCluster()
    monkeypatch.setattr(recovery, "connected", made.connected)
    monkeypatch.setattr(recovery, "whoami", lambda: "me@host")

    async def prepare() -> None:
        await made.fill()
        cookies = CookieStore(made.keeper, await open_cluster(made.keeper, ROOT))
        for name in "cd":
            await cookies.create(Cookie(BookieId(name), ("/j",), ("/l",)))
        async with made.connected("") as client:
            await client.ports.ledgers.create(LedgerId(10), make_metadata((0, "a c"), quorum=(2, 2), last=9))

    asyncio.run(prepare())
    return made


def call(*words: str) -> Result:
    return CliRunner().invoke(app, ["recover", *words, "--metadata-uri", "zk://h:1/ledgers"])


async def start(cluster: CommandCluster, bookie: str) -> None:
    registrations = Registrations(cluster.keeper, await open_cluster(cluster.keeper, ROOT))
    await registrations.register(BookieId(bookie), service_info(bookie), is_read_only=False, takeover_deadline_s=1)


def marked(cluster: CommandCluster) -> list[int]:
    return asyncio.run(cluster.marked())


def test_unreadable_ledgers_are_reported_and_the_rest_is_marked(cluster: CommandCluster) -> None:
    async def damage() -> None:
        async with cluster.connected("") as client:
            await client.store.set(client.ports.ledgers.path(LedgerId(8)), b"nonsense", ANY_VERSION)

    asyncio.run(damage())
    done = call("a", "--yes")
    assert (done.exit_code, "the metadata of 1 ledger cannot be read" in done.stdout) == (ExitCode.PARTIAL, True)
    assert marked(cluster) == [*MARKED, 10]


@pytest.mark.parametrize("option", ["--yes", "--dry-run"])
def test_a_running_bookie_is_refused(cluster: CommandCluster, option: str) -> None:
    refused = call("a", "c", option)
    assert (refused.exit_code, "c is registered" in refused.stderr) == (ExitCode.FAILED, True)
    assert marked(cluster) == MARKED


def test_a_bookie_that_returns_during_the_prompt_is_refused(
    cluster: CommandCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def confirmed(question: str, *, is_sure: bool) -> None:
        with ThreadPoolExecutor(1) as pool:  # an event loop is already running in this thread
            pool.submit(asyncio.run, start(cluster, "a")).result(10)

    monkeypatch.setattr(recovery, "confirm", confirmed)
    refused = call("a")
    assert (refused.exit_code, "a is registered" in refused.stderr) == (ExitCode.FAILED, True)
    assert marked(cluster) == MARKED


def test_the_brake_counts_bookies_that_no_longer_have_a_cookie(cluster: CommandCluster) -> None:
    assert call("a", "b", "--dry-run").exit_code == ExitCode.OK, "two of four are half"
    held = call("a", "b", "--yes", "--missing-share-max", "0.4")
    assert (held.exit_code, "2 of 4 known bookies are not registered" in held.stderr) == (ExitCode.HELD, True)
    assert marked(cluster) == MARKED
    assert call("a", "b", "--yes", "--missing-share-max", "0.4", "--force").exit_code == ExitCode.OK
    assert marked(cluster) == [*MARKED, 10]
