"""``bkheal drain start`` and ``stop``: a refusal changes nothing, and an unknown result has its own exit code."""

from __future__ import annotations

import asyncio
import json

import pytest
from typer.testing import CliRunner, Result

from auditor.cli.cluster import recovery
from auditor.cli.drains import command as drain
from auditor.cli.exit_codes import exit_code_of
from auditor.cli.main import app
from bookie.metadata.bookies.cookies import Cookie, CookieStore
from bookie.metadata.bookies.drains import Drain, Drains
from bookie.metadata.bookies.registration import Registrations
from bookie.metadata.cluster import open_cluster
from bookie.metadata.layout import task_path
from bookie.metadata.nodes import put
from bookie.metadata.port import ANY_VERSION, AccessDeniedError, WriteOutcomeUnknownError
from bookie.metadata.tasks.changes import ChangeRecords
from bookie.metadata.tasks.switches import RecoverySwitches
from bookie.model.errors import BkhealError
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import BookieId, LedgerId
from bookie.runtime.clock import SystemClock
from tests.worlds.cluster import ROOT, service_info
from tests.worlds.commands import CommandCluster
from tests.worlds.ledgers import make_metadata


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> CommandCluster:
    """Bookies c, d and e are registered, and ledger 10 is on c and d; a has a cookie and is not registered."""
    made = CommandCluster()
    monkeypatch.setattr(drain, "connected", made.connected)
    monkeypatch.setattr(drain, "whoami", lambda: "me@host")

    async def prepare() -> None:
        await made.fill()
        cookies = CookieStore(made.keeper, await open_cluster(made.keeper, ROOT))
        await cookies.create(Cookie(BookieId("a"), ("/j",), ("/l",)))
        await register(made, "e")
        await create(made, 10, "c d", last=9)

    asyncio.run(prepare())
    return made


async def register(cluster: CommandCluster, bookie: str, *, is_read_only: bool = False) -> None:
    registrations = Registrations(cluster.keeper, await open_cluster(cluster.keeper, ROOT))
    info = service_info(bookie)
    await registrations.register(BookieId(bookie), info, is_read_only=is_read_only, takeover_deadline_s=1)


async def create(cluster: CommandCluster, ledger_id: int, members: str, last: int | None) -> None:
    quorum = (len(members.split()), len(members.split()))
    async with cluster.connected("") as client:
        await client.ports.ledgers.create(LedgerId(ledger_id), make_metadata((0, members), quorum=quorum, last=last))


def call(*words: str, typed: str = "") -> Result:
    return CliRunner().invoke(app, ["drain", *words, "--metadata-uri", "zk://h:1/ledgers"], input=typed)


def drained(cluster: CommandCluster) -> list[str]:
    return sorted(asyncio.run(Drains(cluster.keeper, ROOT).read()))


def begin(cluster: CommandCluster, *bookies: str) -> None:
    asyncio.run(Drains(cluster.keeper, ROOT).start(*(Drain(BookieId(name), "me", 1) for name in bookies)))


def is_unchanged(cluster: CommandCluster, *drains: str) -> bool:
    changes = asyncio.run(ChangeRecords(cluster.keeper, ROOT, cluster.clock).newest(9))
    return drained(cluster) == sorted(drains) and not changes and asyncio.run(cluster.marked()) == [7, 8, 9]


def test_the_status_shows_whether_recovery_is_enabled(cluster: CommandCluster) -> None:
    switches = RecoverySwitches(cluster.keeper, ROOT)
    for is_enabled in (True, False):
        assert json.loads(call("status", "c", "-o", "json").stdout)["recovery_enabled"] is is_enabled
        if is_enabled:
            asyncio.run(switches.disable())


@pytest.mark.parametrize("option", ["--yes", "--dry-run"])
def test_one_unregistered_bookie_stops_the_drain_of_the_others(cluster: CommandCluster, option: str) -> None:
    refused = call("start", "c", "a", option)
    assert (refused.exit_code, "not registered: a" in refused.stderr) == (ExitCode.FAILED, True)
    assert is_unchanged(cluster)


def test_no_drain_begins_while_recovery_is_disabled(cluster: CommandCluster) -> None:
    async def disable() -> None:
        async with cluster.connected("") as client:
            await client.ports.tasks.switches.disable()

    asyncio.run(disable())
    refused = call("start", "c", "--yes")
    assert (refused.exit_code, "auto-recovery is disabled" in refused.stderr) == (ExitCode.FAILED, True)
    assert is_unchanged(cluster)
    assert call("start", "c", "--dry-run").exit_code == ExitCode.OK
    assert call("start", "c", "--yes", "--force").exit_code == ExitCode.OK


def test_draining_bookies_do_not_count_as_room(cluster: CommandCluster) -> None:
    begin(cluster, "e")
    refused = call("start", "c", "--yes")
    assert (refused.exit_code, "1 writable bookie would be left" in refused.stderr) == (ExitCode.FAILED, True)
    assert is_unchanged(cluster, "e")


def test_the_copies_of_a_read_only_bookie_need_space_too(cluster: CommandCluster) -> None:
    for name in ("c", "e"):
        asyncio.run(register(cluster, name, is_read_only=True))
    refused = call("start", "c", "--yes")
    assert (refused.exit_code, "1 writable bookie would be left" in refused.stderr) == (ExitCode.FAILED, True)
    assert is_unchanged(cluster)


def test_enough_writable_bookies_must_remain_for_open_ledgers_elsewhere(cluster: CommandCluster) -> None:
    asyncio.run(create(cluster, 11, "a b d", last=None))
    refused = call("start", "c", "--yes")
    assert (refused.exit_code, "ensembles of 3 bookies" in refused.stderr) == (ExitCode.FAILED, True)
    assert is_unchanged(cluster)


def test_an_unreadable_ledger_has_its_own_exit_code_and_the_rest_is_marked(cluster: CommandCluster) -> None:
    async def damage() -> None:
        async with cluster.connected("") as client:
            await client.store.set(client.ports.ledgers.path(LedgerId(9)), b"nonsense", ANY_VERSION)

    asyncio.run(damage())
    started = call("start", "c", "--yes")
    assert (started.exit_code, "the metadata of 1 ledger cannot be read" in started.stderr) == (ExitCode.PARTIAL, True)
    assert (drained(cluster), asyncio.run(cluster.marked())) == (["c"], [7, 8, 9, 10])


def test_a_ledger_whose_mark_cannot_be_read_is_counted_separately(cluster: CommandCluster) -> None:
    asyncio.run(put(cluster.keeper, task_path(ROOT, LedgerId(10)), b"nonsense", ROOT))
    started = call("start", "c", "--yes")
    note = "of these ledgers, 1 has a mark that cannot be read, so it is not repaired"
    assert (started.exit_code, note in started.stderr) == (ExitCode.PARTIAL, True)
    status = json.loads(call("status", "c", "-o", "json").stdout)
    left = [status[name] for name in ("ledgers_left", "unmarked", "unreadable_marks")]
    assert left == [status["moving"] + 1, 0, 1]
    assert "  1 has a mark that cannot be read, so it is not repaired" in call("status", "c").stdout


def test_recover_counts_the_marks_that_it_cannot_read(cluster: CommandCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "connected", cluster.connected)
    asyncio.run(put(cluster.keeper, task_path(ROOT, LedgerId(9)), b"nonsense", ROOT))
    for option in ("--dry-run", "--yes"):
        words = ["recover", "a", option, "--force", "--metadata-uri", "zk://h:1/ledgers"]
        result = CliRunner().invoke(app, words)
        assert (result.exit_code, "of these ledgers, 1 has a mark" in result.stdout) == (ExitCode.PARTIAL, True)


def test_a_bookie_is_not_empty_while_a_ledger_is_unreadable(cluster: CommandCluster) -> None:
    async def damage() -> None:
        async with cluster.connected("") as client:
            await client.store.set(client.ports.ledgers.path(LedgerId(9)), b"nonsense", ANY_VERSION)

    begin(cluster, "e")
    assert call("status", "e").exit_code == ExitCode.OK
    asyncio.run(damage())
    for option in ((), ("--wait",)):
        left = call("status", "e", *option)
        assert (left.exit_code, "decommission" in left.stdout) == (ExitCode.PARTIAL, False)
        assert "none of the 3 ledgers that can be read names it" in left.stdout


def test_a_wait_ends_after_a_complete_scan_without_ledgers(cluster: CommandCluster) -> None:
    steps = iter([(10, 11), (11, None)])

    class Moving(SystemClock):
        """A clock that removes a ledger from the bookie at each wait.

        At the first wait, a writer creates another ledger there.
        """

        async def sleep(self, seconds: float) -> None:
            leaving, coming = next(steps)
            if coming is not None:
                await create(cluster, coming, "c d", last=9)
            async with cluster.connected("") as client:
                await client.ports.ledgers.delete(LedgerId(leaving))

    cluster.clock = Moving()
    begin(cluster, "c")
    done = call("status", "c", "--wait")
    assert (done.exit_code, "of 3 ledgers, all readable, none names it" in done.stdout) == (ExitCode.OK, True)
    assert next(steps, None) is None


def test_a_wait_marks_nothing_for_a_lost_bookie_that_is_not_being_drained(cluster: CommandCluster) -> None:
    """Its ledgers may be held back: by the brake, the delay of the bookie, or a maintenance window."""
    asyncio.run(create(cluster, 12, "a c", last=9))
    done = call("status", "a", "--wait", "--timeout", "0")
    assert (done.exit_code, asyncio.run(cluster.marked())) == (ExitCode.FAILED, [7, 8, 9])
    assert "1 ledger is not marked, and the wait does not mark it: `bkheal recover a` does" in done.stderr


def test_a_wait_for_a_registered_bookie_that_is_not_being_drained_ends_and_marks_nothing(
    cluster: CommandCluster,
) -> None:
    done = call("status", "d", "--wait")
    assert (done.exit_code, asyncio.run(cluster.marked())) == (ExitCode.FAILED, [7, 8, 9])
    assert "d is registered and not being drained, so nothing moves its data: `bkheal drain start d`" in done.stderr


def test_a_wait_ends_after_its_drain_was_cancelled(cluster: CommandCluster) -> None:
    class Cancelling(SystemClock):
        """A clock at whose first wait an operator cancels the drain."""

        async def sleep(self, seconds: float) -> None:
            await Drains(cluster.keeper, ROOT).stop(BookieId("c"))

    begin(cluster, "c")
    cluster.clock = Cancelling()
    done = call("status", "c", "--wait")
    assert (done.exit_code, "c is registered and not being drained" in done.stderr) == (ExitCode.FAILED, True)


def test_a_wait_marks_a_ledger_of_a_drained_bookie_again(cluster: CommandCluster) -> None:
    begin(cluster, "c")  # its ledger 10 has no task, as if a worker of another program had deleted it
    assert asyncio.run(cluster.marked()) == [7, 8, 9]
    assert call("status", "c", "--wait", "--timeout", "0").exit_code == ExitCode.FAILED
    assert asyncio.run(cluster.marked()) == [7, 8, 9, 10]


@pytest.mark.parametrize("typed", ["", "\n", "n\n"], ids=repr)
def test_a_drain_is_cancelled_only_after_a_yes(cluster: CommandCluster, typed: str) -> None:
    begin(cluster, "c")
    assert call("stop", "c", typed=typed).exit_code == (ExitCode.FAILED if typed else ExitCode.USAGE)
    assert call("stop", "c", "--dry-run").exit_code == ExitCode.OK
    assert is_unchanged(cluster, "c")


def test_there_is_no_question_about_a_drain_that_does_not_exist(cluster: CommandCluster) -> None:
    begin(cluster, "c")
    absent = call("stop", "d", "-o", "json")
    assert (absent.exit_code, json.loads(absent.stdout)["stopped"]) == (ExitCode.FAILED, [])
    assert ("not being drained: d" in absent.stderr, "?" in absent.stderr) == (True, False)
    asked = call("stop", "c", "d", typed="y\n")
    assert (asked.exit_code, "c" in asked.stderr, "d?" in asked.stderr) == (ExitCode.FAILED, True, False)
    assert drained(cluster) == []


def test_existing_drains_are_cancelled_and_missing_ones_are_named(cluster: CommandCluster) -> None:
    begin(cluster, "c", "d")
    stopped = call("stop", "c", "e", "-o", "json", "--yes")
    assert (stopped.exit_code, json.loads(stopped.stdout)["stopped"]) == (ExitCode.FAILED, ["c"])
    assert drained(cluster) == ["d"]


@pytest.mark.parametrize("error", [AccessDeniedError("refused"), WriteOutcomeUnknownError("no answer")], ids=repr)
def test_drains_cancelled_before_an_error_are_shown(
    cluster: CommandCluster, monkeypatch: pytest.MonkeyPatch, error: BkhealError
) -> None:
    begin(cluster, "c", "d", "e")
    stop = Drains.stop

    async def failing(drains: Drains, bookie: BookieId) -> bool:
        if bookie == "d":
            raise error
        return await stop(drains, bookie)

    monkeypatch.setattr(Drains, "stop", failing)
    ended = call("stop", "c", "d", "e", "-o", "json", "--yes")
    assert (ended.exit_code, json.loads(ended.stdout)["stopped"]) == (exit_code_of(error), ["c"])
    assert (str(error) in ended.stderr, "d, e" in ended.stderr) == (True, True)
    assert drained(cluster) == ["d", "e"]
    assert call("stop", "d", "e", "--yes").exception is error
