"""Lost bookies with accepted losses: commands skip the accepted losses, and nothing else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from auditor.cli.cluster import recovery
from auditor.cli.dead_letters import decision, pages
from auditor.cli.drains import command as drain
from auditor.cli.drains import decommission
from auditor.cli.main import app
from bookie.metadata.bookies.cookies import Cookie, CookieStore
from bookie.metadata.bookies.registration import Registrations
from bookie.metadata.cluster import open_cluster
from bookie.metadata.layout import cookie_path
from bookie.metadata.port import ANY_VERSION
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import BookieId, LedgerId
from tests.worlds.cluster import ROOT, service_info
from tests.worlds.commands import CommandCluster
from tests.worlds.ledgers import make_metadata


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> CommandCluster:
    """Bookies a and b are lost, with every copy of ledgers 7, 8 and 9; the losses of 7 and 8 are accepted."""
    made = CommandCluster()
    monkeypatch.setattr(pages, "connected", made.connected)
    for module in (decision, decommission, drain, recovery):
        monkeypatch.setattr(module, "connected", made.connected)
        monkeypatch.setattr(module, "whoami", lambda: "me@host")

    async def prepare() -> None:
        await made.fill()
        cookies = CookieStore(made.keeper, await open_cluster(made.keeper, ROOT))
        for name in "abcd":
            await cookies.create(Cookie(BookieId(name), ("/j",), ("/l",)))

    ran(prepare())
    assert call("dead-letters", "accept-loss", "7", "8", "--reason", "fire", "--yes").exit_code == ExitCode.OK
    return made


def ran(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


def call(*words: str, typed: str | None = None) -> Result:
    return CliRunner().invoke(app, [*words, "--metadata-uri", "zk://h:1/ledgers"], input=typed)


async def delete(cluster: CommandCluster, ledger_id: int) -> None:
    async with cluster.connected("") as client:
        await client.ports.ledgers.delete(LedgerId(ledger_id))


async def replace(cluster: CommandCluster, ledger_id: int, *fragments: tuple[int, str]) -> None:
    async with cluster.connected("") as client:
        await client.ports.ledgers.delete(LedgerId(ledger_id))
        await client.ports.ledgers.create(LedgerId(ledger_id), make_metadata(*fragments, quorum=(2, 2), last=9))


async def cookies_of(cluster: CommandCluster) -> list[str]:
    async with cluster.connected("") as client:
        return sorted(await client.ports.registrations.known())


def test_recover_leaves_accepted_losses_unmarked(cluster: CommandCluster) -> None:
    done = call("recover", "a", "b", "--yes")
    assert done.exit_code == ExitCode.OK, done.output
    assert "1 ledger is marked: 1 fragment" in done.stdout
    assert "2 ledgers stayed unmarked, as the loss was accepted" in done.stdout
    assert ran(cluster.marked()) == [9]
    document = json.loads(call("recover", "a", "--dry-run", "-o", "json").stdout)
    assert (document["ledgers"], document["accepted_ledgers"]) == (1, 2)


def test_a_bookie_with_only_accepted_losses_is_decommissioned(cluster: CommandCluster) -> None:
    refused = call("decommission", "a", "b", "--yes")
    assert refused.exit_code == ExitCode.FAILED
    assert "1 ledger still names a, b (9): `bkheal recover a b` marks it for repair" in refused.stderr
    ran(delete(cluster, 9))
    asked = call("decommission", "a", "b", typed="n\n")
    assert (asked.exit_code, ran(cookies_of(cluster))) == (1, ["a", "b", "c", "d"])
    assert "2 ledgers with an accepted loss" in asked.stderr
    done = json.loads(call("decommission", "a", "b", "--yes", "-o", "json").stdout)
    assert (done["accepted_ledgers"], ran(cookies_of(cluster))) == (2, ["c", "d"])


def test_a_bookie_with_a_damaged_cookie_is_decommissioned_after_the_same_checks(cluster: CommandCluster) -> None:
    for name in ("a", "c"):
        ran(cluster.keeper.set(cookie_path(ROOT, BookieId(name)), b"", ANY_VERSION))
    assert "1 ledger still names a" in call("decommission", "a", "--yes").stderr
    assert "c is running" in call("decommission", "c", "--yes").stderr
    assert ran(cookies_of(cluster)) == ["a", "b", "c", "d"]
    ran(delete(cluster, 9))
    done = call("decommission", "a", "--yes")
    assert (done.exit_code, done.stdout.splitlines()[0]) == (ExitCode.OK, "a: its cookie is deleted")
    assert ran(cookies_of(cluster)) == ["b", "c", "d"]


def test_drain_status_of_a_lost_bookie_names_the_command_that_marks_and_ends(cluster: CommandCluster) -> None:
    ran(replace(cluster, 10, (0, "a c")))
    look = call("drain", "status", "a")
    assert look.exit_code == ExitCode.FAILED
    assert "2 ledgers left" in look.stdout
    assert "1 not marked: `bkheal recover a` marks them" in look.stdout
    assert "2 more with an accepted loss" in look.stdout
    assert "`bkheal recover a` and `bkheal drain start c` mark them" in call("drain", "status", "a", "c").stdout
    timed = call("drain", "status", "a", "--wait", "--timeout", "0")
    assert (timed.exit_code, "the drain continues" in timed.output) == (ExitCode.FAILED, False)
    assert ran(cluster.marked()) == [9], "--wait marks no ledger of a lost bookie without a drain"
    for ledger_id in (9, 10):
        ran(delete(cluster, ledger_id))
    done = call("drain", "status", "a", "--wait")
    assert done.exit_code == ExitCode.OK
    assert "none names it, except 2 ledgers with an accepted loss. Next: `bkheal decommission a`" in done.stdout


@pytest.mark.parametrize(
    "fragments", [[(0, "b a")], [(0, "a b"), (5, "c a")], [(3, "a b")], [(0, "c d"), (5, "a b")]], ids=str
)
def test_copies_other_than_the_accepted_ones_count(cluster: CommandCluster, fragments: list[tuple[int, str]]) -> None:
    ran(delete(cluster, 9))
    ran(replace(cluster, 8, *fragments))
    refused = call("decommission", "a", "--yes")
    assert (refused.exit_code, "1 ledger still names a (8)" in refused.stderr) == (ExitCode.FAILED, True)
    assert "1 ledger would be marked" in call("recover", "a", "--dry-run").stdout


def test_an_acceptance_is_invalid_once_withdrawn_or_once_one_of_its_bookies_is_back(cluster: CommandCluster) -> None:
    assert call("dead-letters", "drop", "8", "--yes").exit_code == ExitCode.OK
    assert "2 ledgers still name a (8, 9)" in call("decommission", "a", "--yes").stderr

    async def back() -> None:
        registrations = Registrations(cluster.keeper, await open_cluster(cluster.keeper, ROOT))
        await registrations.register(BookieId("b"), service_info("b"), is_read_only=False, takeover_deadline_s=1)

    ran(back())
    assert "3 ledgers still name a (7, 8, 9)" in call("decommission", "a", "--yes").stderr
