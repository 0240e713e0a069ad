"""``bkheal ok-to-stop`` prints yes only if it is certain that no ledger prevents the stop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
from typer.testing import CliRunner

from auditor.cli.cluster import ok_to_stop
from auditor.cli.main import app
from bookie.metadata.bookies.cookies import Cookie, CookieStore
from bookie.metadata.bookies.drains import Drain, Drains
from bookie.metadata.bookies.registration import Registrations
from bookie.metadata.cluster import open_cluster
from bookie.metadata.layout import task_path
from bookie.metadata.port import ANY_VERSION
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import BookieId, LedgerId
from bookie.model.spread import PlacementPolicy
from tests.worlds.clocks import ManualClock
from tests.worlds.cluster import ROOT, service_info
from tests.worlds.commands import CommandCluster
from tests.worlds.ledgers import make_metadata, names


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> CommandCluster:
    """Bookies c and d are registered; every ledger of a and b is marked, and these two are not registered."""
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


async def returned(cluster: CommandCluster, *bookies: str, is_read_only: bool = False) -> None:
    registrations = Registrations(cluster.keeper, await open_cluster(cluster.keeper, ROOT))
    for name in bookies:
        info = service_info(name)
        await registrations.register(BookieId(name), info, is_read_only=is_read_only, takeover_deadline_s=1)


async def gone(cluster: CommandCluster, bookie: str) -> None:
    registrations = Registrations(cluster.keeper, await open_cluster(cluster.keeper, ROOT))
    await registrations.unregister(BookieId(bookie))


async def damage(cluster: CommandCluster, ledger_id: int) -> None:
    async with cluster.connected("") as client:
        await client.store.set(client.ports.ledgers.path(LedgerId(ledger_id)), b"nonsense", ANY_VERSION)


def test_an_unreadable_ledger_is_not_ok_and_has_its_own_exit_code(cluster: CommandCluster) -> None:
    assert asked("c") == (ExitCode.OK, asked("c")[1])
    asyncio.run(damage(cluster, 7))
    code, document = asked("c")
    assert (code, document["ok"], document["unreadable_ledgers"]) == (ExitCode.PARTIAL, False, 1)
    asyncio.run(put(cluster, 10, "c d"))
    assert asked("c", "d")[0] == ExitCode.FAILED, "a certain refusal has precedence"


def test_returned_bookies_may_hold_the_only_copies_of_marked_ledgers(cluster: CommandCluster) -> None:
    asyncio.run(returned(cluster, "a", "b"))
    for stopping in (("a",), ("a", "b")):
        code, document = asked(*stopping)
        assert (code, document["ledgers_at_risk"], document["worst"][0]["copies_left"]) == (ExitCode.FAILED, 3, 0)
    asyncio.run(put(cluster, 10, "c d", missing="d"))
    assert asked("d")[0] == ExitCode.OK, "the other copy certainly exists"
    assert asked("c")[0] == ExitCode.FAILED, "no other copy certainly exists"


def test_an_unreadable_mark_may_name_any_bookie_of_its_ledger(cluster: CommandCluster) -> None:
    asyncio.run(put(cluster, 10, "c d", missing="d"))
    asyncio.run(cluster.keeper.set(task_path(ROOT, LedgerId(10)), b"nonsense", ANY_VERSION))
    for bookie in ("c", "d"):
        code, document = asked(bookie)
        assert (code, document["ledgers_at_risk"], document["worst"][0]["copies_left"]) == (ExitCode.FAILED, 1, 0)


async def new_disks(cluster: CommandCluster, bookie: str) -> None:
    """Record disks of a bookie; they replace earlier ones."""
    cookies = CookieStore(cluster.keeper, await open_cluster(cluster.keeper, ROOT))
    if (version := await cookies.version(BookieId(bookie))) is not None:
        await cookies.delete(BookieId(bookie), version)
    await cookies.create(Cookie(BookieId(bookie), ("/j",), ("/l",)))


async def drain(cluster: CommandCluster, bookie: str) -> None:
    now_ms = cluster.clock.epoch_ms()
    await Drains(cluster.keeper, ROOT).start(Drain(BookieId(bookie), "me", now_ms))


def test_a_drained_bookie_is_marked_and_its_copies_count(cluster: CommandCluster) -> None:
    asyncio.run(new_disks(cluster, "c"))
    asyncio.run(drain(cluster, "c"))
    asyncio.run(put(cluster, 10, "c d", missing="c"))
    assert asked("d")[0] == ExitCode.OK
    assert asked("c", "d")[0] == ExitCode.FAILED


@pytest.mark.parametrize("lost", ["before the drain", "during the drain"])
def test_a_drained_bookie_that_lost_its_disks_does_not_count_as_a_copy(cluster: CommandCluster, lost: str) -> None:
    clock = ManualClock()
    cluster.clock = clock
    asyncio.run(new_disks(cluster, "c"))
    if lost == "before the drain":
        asyncio.run(put(cluster, 10, "c d", missing="c"))
        clock.now_s += 1
    asyncio.run(drain(cluster, "c"))
    if lost == "during the drain":
        asyncio.run(new_disks(cluster, "c"))
        asyncio.run(put(cluster, 10, "c d", missing="c"))
    code, document = asked("d")
    assert (code, document["worst"][0]["copies_left"]) == (ExitCode.FAILED, 0)


def test_copies_on_a_read_only_bookie_count(cluster: CommandCluster) -> None:
    asyncio.run(put(cluster, 10, "c d"))
    asyncio.run(returned(cluster, "d", is_read_only=True))
    assert asked("c")[0] == ExitCode.OK


def test_strict_leaves_more_than_one_copy(cluster: CommandCluster) -> None:
    asyncio.run(put(cluster, 10, "c d"))
    assert asked("c")[0] == ExitCode.OK
    code, document = asked("c", "--strict")
    assert (code, document["worst"][0]["copies_needed"]) == (ExitCode.FAILED, 2)


def during_the_reading(monkeypatch: pytest.MonkeyPatch, change: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Make a change in the cluster while the command reads the ledgers."""

    @contextmanager
    def counting(title: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
        done: list[int] = []

        def advance(count: int) -> None:
            if not done:
                with ThreadPoolExecutor(1) as pool:  # an event loop is already running in this thread
                    pool.submit(asyncio.run, change()).result(10)
            done.append(count)

        yield advance

    monkeypatch.setattr(ok_to_stop, "counting", counting)


def test_a_bookie_that_disappears_while_ledgers_are_read_is_not_ok(
    cluster: CommandCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    during_the_reading(monkeypatch, lambda: gone(cluster, "d"))
    code, document = asked("c")
    assert (code, document["ok"]) == (ExitCode.FAILED, False)
    assert document["placement_problems"] == ["d lost the registration while ledgers were read: run the command again"]


def test_writable_bookies_are_counted_after_the_ledgers_were_read(
    cluster: CommandCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.run(returned(cluster, "e", "f"))
    asyncio.run(put(cluster, 10, "d e", last=None))
    assert asked("c")[0] == ExitCode.OK
    during_the_reading(monkeypatch, lambda: returned(cluster, "f", "e", is_read_only=True))
    code, document = asked("c")
    assert (code, "1 writable bookie would be left" in document["placement_problems"][0]) == (ExitCode.FAILED, True)


def test_the_placement_policy_of_the_command_is_used(cluster: CommandCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    @asynccontextmanager
    async def connected(uri: str, **options: Any) -> AsyncIterator[Any]:
        given.append(options["placement_policy"])
        async with cluster.connected(uri) as client:
            yield client

    monkeypatch.setattr(ok_to_stop, "connected", connected)
    asked("c", "--min-racks", "3")
    assert given == [PlacementPolicy(min_racks=3)]
