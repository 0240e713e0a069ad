"""A cluster for the tests of one file, and ledgers of which Apache's client can read every byte."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from bookie.client import connect as client_connect
from bookie.client.connect import ConnectedBookKeeper
from bookie.embedded.apache import ApacheBookie, ApacheCluster
from bookie.embedded.apache_jars import ApacheJvm
from bookie.embedded.apache_settings import ApacheOptions
from bookie.embedded.process import ManagedProcess
from bookie.metadata.nodes import child_names, remove
from bookie.metadata.own_state import own_path
from bookie.metadata.store.zookeeper import ZooKeeperStore
from bookie.model.ids import BookieId
from bookie.wire.security import PLAINTEXT, BookieSecurity
from tests.apache.driver import JavaDriver, JavaError, JavaHandle, expected, payloads
from tests.apache.waiting import until
from tests.deadlines import PROGRAM_S
from tests.sessions import LONG_SESSION_S, Killable, kill9

SIZES: Final = (0, 1, 100, 3000)
PASSWORD: Final = b"secret"
LONG_SESSION: Final[Mapping[str, str]] = {"zkTimeout": str(round(1000 * LONG_SESSION_S))}
"""The session timeout of Apache's programs, so long that a stall of a busy machine ends no session.
``ApacheWorld.kill9`` ends sessions."""
QUICK: Final[Mapping[str, str]] = {
    # Apache's worker (4.17.3) keeps a lock forever if it takes a ledger again at the moment at which its own timer
    # releases it. So the timer is shorter here: after a failure the worker waits longer than it keeps the lock.
    "rwRereplicateBackoffMs": "1000",
    "lockReleaseOfFailedLedgerGracePeriod": "200",
    # Requests that are not answered in time fail. The timeout is so long that a stall of a busy machine fails none.
    "addEntryTimeoutSec": "40",
    "readEntryTimeoutSec": "40",
}
"""Settings with which Apache's auto-recovery soon repeats failed repairs."""
CHOICES: Final = 300
"""The most attempts to create a ledger with the intended members. On average, one of ten or fewer succeeds."""
_AT_A_TIME: Final = 8
_TASK: Final = r"urL\d{10,19}"
_KNOWN_TO_APACHE: Final = (
    "LAYOUT",
    "INSTANCEID",
    "available(/readonly)?",
    "cookies",
    r"\d{2}(/\d{4}(/L\d{4})?)?",
    r"\d{3}(/\d{4}){0,3}",
    r"\d{3}(/\d{4}){3}/L\d{4}",
    r"idgen(-long)?(/.*)?",
    "underreplication",
    "underreplication/(LAYOUT|disable|lostBookieRecoveryDelay)",
    r"underreplication/auditorelection(/V_\d{10})?",
    "underreplication/leader",
    "underreplication/(checkallledgersctime|placementpolicycheckctime|replicascheckctime)",
    r"underreplication/ledgers(/[0-9a-f]{4}){0,4}",
    rf"underreplication/ledgers(/[0-9a-f]{{4}}){{4}}/{_TASK}",
    rf"underreplication/locks(/{_TASK})?",
)
"""The paths below a ledgers root that Apache uses, except those that end with a bookie's id."""

_ABOUT_LOSSES: Final = ("first-seen-down", "maintenance", "returned")
"""Records of our auditors that would delay the marks for a bookie that is lost later."""

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class ApacheWorld:
    """A cluster and Apache's client on it."""

    cluster: ApacheCluster
    java: JavaDriver

    @property
    def uri(self) -> str:
        """Return the URI of the cluster."""
        return self.cluster.metadata_uri

    @property
    def running(self) -> list[ApacheBookie]:
        """Return the running Apache bookies."""
        return [bookie for bookie in self.cluster.bookies if bookie.running.is_running]

    def bookie(self, bookie_id: str) -> ApacheBookie:
        """Return the bookie with this id."""
        return next(bookie for bookie in self.cluster.bookies if bookie.bookie_id == bookie_id)

    async def kill9(self, *killed: Killable | ManagedProcess) -> None:
        """Send SIGKILL. On return, the registrations, votes and locks of these no longer exist, as after a timeout."""
        await kill9(self.cluster.zookeeper, *killed)

    async def tasks(self) -> dict[int, list[str]]:
        """Return all tasks as Apache's client lists them: each ledger with its missing bookies."""
        return {task["ledger"]: task["missing"] for task in (await self.java.call("tasks"))["tasks"]}


async def start_cluster(
    directory: Path,
    jvm: ApacheJvm,
    kind: type[ApacheCluster] = ApacheCluster,
    options: ApacheOptions | None = None,
    **arguments: Any,
) -> ApacheCluster:
    """Start a cluster whose programs start quickly and have long sessions; arguments as for ``ApacheCluster.start``."""
    given: dict[str, Any] = {"is_zookeeper_durable": False, "java": jvm.java, "lib": jvm.lib} | arguments
    return await kind.start(directory, options=patient(options), jvm_options=jvm.options, **given)


async def end_cluster(cluster: ApacheCluster) -> None:
    """Kill the cluster, because other tests cover its regular stop."""
    for server in (*cluster.auto_recoveries, *cluster.bookies):
        if server.process is not None:
            server.process.kill9()
    cluster.zookeeper.kill()
    await cluster.stop()


def patient(options: ApacheOptions | None = None) -> ApacheOptions:
    """Return these options with a long session timeout."""
    options = options or ApacheOptions()
    return replace(options, extra={**LONG_SESSION, **options.extra})


@contextmanager
def world(
    directory: Path, jvm: ApacheJvm, classes: Path, kind: type[ApacheCluster] = ApacheCluster, **arguments: Any
) -> Iterator[ApacheWorld]:
    """A cluster with a Java driver for the tests of a file; arguments as for ``ApacheCluster.start``."""
    stack = AsyncExitStack()

    async def start() -> ApacheWorld:
        cluster = await start_cluster(directory / "cluster", jvm, kind, **arguments)
        stack.push_async_callback(end_cluster, cluster)
        driver = await JavaDriver.start(directory / "driver", cluster, jvm, classes)
        stack.push_async_callback(driver.kill9)
        return ApacheWorld(cluster, driver)

    try:
        yield asyncio.run(start())
    finally:
        asyncio.run(stack.aclose())


async def connect(uri: str, security: BookieSecurity = PLAINTEXT) -> ConnectedBookKeeper:
    """Connect our client, with a long session."""
    return await client_connect.connect(uri, session_timeout_s=LONG_SESSION_S, security=security)


async def as_at_first(here: ApacheWorld) -> None:
    """Restore the first state: all bookies are writable; no ledgers, no tasks, no Apache auto-recovery, no settings."""
    cluster = here.cluster
    alive = [server for server in cluster.auto_recoveries if server.running.is_running]
    await here.kill9(*alive)
    cluster.auto_recoveries.clear()
    for bookie in cluster.bookies:
        bookie.running.resume()
        if bookie.settings.pop("forceReadOnlyBookie", None):
            await bookie.stop()
    await asyncio.gather(*(bookie.start() for bookie in cluster.bookies))
    for client in ("v2", "v3"):  # clients that connect after this find the current bookies
        await here.java.drop_client(client)
    for ledger_id in (await here.java.call("ledgers"))["ledgers"]:
        await here.java.call("delete", ledger=ledger_id)
    async with await connect(here.uri) as ours:
        for parked in await ours.parked.list():
            await ours.parked.unpark(parked.ledger_id)
        await no_tasks_in(ours)
        if await ours.ports.tasks.switches.is_disabled():
            await ours.ports.tasks.switches.enable()
        await ours.ports.tasks.switches.set_lost_bookie_delay_s(0)
        for records in _ABOUT_LOSSES:
            parent = own_path(records, ours.cluster.root)
            for name in await child_names(ours.store, parent):
                await remove(ours.store, f"{parent}/{name}")
        names = {bookie.bookie_id for bookie in cluster.bookies}
        await until(ours.ports.registrations.list, lambda found: found.writable == names, "all bookies are registered")


async def no_tasks_in(client: ConnectedBookKeeper) -> None:
    """Remove every task, whether or not its repair is done."""
    for task in await client.ports.tasks.list():
        held = await client.ports.tasks.locks.lock(task.ledger_id, "the test")
        assert held is not None, task
        assert await client.ports.tasks.locks.complete(held), task


@dataclass(frozen=True)
class Ledger:
    """A ledger that Apache's client wrote, with what is needed to compare its contents."""

    ledger_id: int
    digest: str
    entries: int

    @property
    def contents(self) -> list[bytes]:
        """Return the payloads of its entries."""
        return payloads(self.digest, range(self.entries), SIZES)


@dataclass(frozen=True)
class Seen:
    """The metadata of a ledger as Apache's client reads it."""

    version: int
    ensembles: Mapping[str, Sequence[str]]

    @property
    def members(self) -> set[str]:
        """Return all bookies that the metadata names."""
        return {member for members in self.ensembles.values() for member in members}

    def fragments_with(self, bookie: str) -> int:
        """Return how many fragments name ``bookie``."""
        return sum(bookie in members for members in self.ensembles.values())


async def each(items: Sequence[T], work: Callable[[T], Awaitable[R]]) -> list[R]:
    """Call ``work`` for every item, a few at a time, and return the results in order."""
    turn = asyncio.Semaphore(_AT_A_TIME)

    async def one(item: T) -> R:
        async with turn:
            return await work(item)

    return list(await asyncio.gather(*(one(item) for item in items)))


async def begin(java: JavaDriver, shape: Sequence[int], digest: str = "CRC32C", client: str = "v3") -> JavaHandle:
    """Create a ledger for ``extend`` and ``finish``."""
    return await java.create(*shape, digest=digest, password=PASSWORD, client=client)


async def extend(handle: JavaHandle, digest: str, entries: int) -> None:
    """Append the entries that ``Ledger.contents`` then returns."""
    await handle.write(entries, seed=digest, sizes=SIZES)


async def written(
    java: JavaDriver, shapes: Sequence[Sequence[int]], count: int, entries: int = 10, client: str = "v3"
) -> list[Ledger]:
    """Write ``count`` closed ledgers with these shapes in turn."""

    async def one(number: int) -> Ledger:
        digest = ("CRC32C", "MAC")[number % 2]
        handle = await begin(java, shapes[number % len(shapes)], digest, client)
        await extend(handle, digest, entries)
        await handle.close()
        return Ledger(handle.ledger_id, digest, entries)

    return await each(range(count), one)


async def seen(java: JavaDriver, ledgers: Sequence[Ledger]) -> dict[int, Seen]:
    """Return the metadata of each ledger."""

    async def one(ledger: Ledger) -> Seen:
        found = await java.call("metadata", ledger=ledger.ledger_id)
        return Seen(int(found["version"]), found["ensembles"])

    found = await each(ledgers, one)
    return {ledger.ledger_id: metadata for ledger, metadata in zip(ledgers, found, strict=True)}


async def check_healthy(java: JavaDriver, ledgers: Sequence[Ledger], clients: Sequence[str] = ("v2", "v3")) -> None:
    """Check that Apache's checker finds nothing, and Apache's client reads every byte by both protocol versions.

    This is for ledgers whose writer waited for all copies: with a smaller ack quorum, copies may be missing.
    """

    async def one(ledger: Ledger) -> None:
        checked = await java.call("check", ledger=ledger.ledger_id, client=clients[-1])
        assert checked["fragments"] == [], ledger
        for client in clients:
            read = await java.read_all(ledger.ledger_id, digest=ledger.digest, password=PASSWORD, client=client)
            assert read == expected(ledger.contents), (ledger, client)

    await each(ledgers, one)


async def held(java: JavaDriver, bookie: str, ledger_id: int, client: str = "v3") -> int:
    """Return how many entries of a ledger a bookie has."""
    try:
        listed = await java.call("available_entries", bookie=bookie, ledger=ledger_id, client=client)
    except JavaError as error:
        if error.kind in ("BKNoSuchLedgerExistsException", "BKNoSuchEntryException"):
            return 0
        raise
    return int(listed["total"])


@asynccontextmanager
async def paused(client: ConnectedBookKeeper, *bookies: ApacheBookie) -> AsyncIterator[None]:
    """Pause these bookies during the block (SIGSTOP). Afterwards wait until they are registered."""
    for bookie in bookies:
        bookie.running.pause()
    try:
        yield
    finally:
        for bookie in bookies:
            bookie.running.resume()
    wanted = {bookie.bookie_id for bookie in bookies}
    await until(
        client.ports.registrations.list,
        lambda found: found.registered >= wanted,
        f"{', '.join(wanted)} are registered again",
    )


async def on(java: JavaDriver, wanted: Collection[str], *shape: int, **more: Any) -> JavaHandle:
    """Create a ledger with these bookies in its first ensemble; options as for ``JavaDriver.create``."""
    for _ in range(CHOICES):
        handle = await java.create(*shape, **more)
        if set(wanted) <= set((await java.call("metadata", ledger=handle.ledger_id))["ensembles"]["0"]):
            return handle
        await handle.close()
        await java.call("delete", ledger=handle.ledger_id)
    raise AssertionError(f"of {CHOICES} ledgers none is on {', '.join(wanted)}")


async def gone(client: ConnectedBookKeeper, *bookies: BookieId) -> None:
    """Wait until ZooKeeper no longer lists these bookies."""
    await until(
        client.ports.registrations.list,
        lambda found: not found.registered & set(bookies),
        f"{', '.join(bookies)} are no longer registered",
    )


async def no_work_left(world: ApacheWorld, client: ConnectedBookKeeper, deadline_s: float = PROGRAM_S) -> None:
    """Wait until no ledger is marked and none is locked."""

    async def look() -> tuple[int, int]:
        return len(await client.ports.tasks.list()), len(await client.ports.tasks.locks.locked())

    await until(look, lambda left: left == (0, 0), "no task and no lock is left", deadline_s)
    assert await world.tasks() == {}


async def names_below(store: ZooKeeperStore, top: str) -> set[str]:
    """Return the relative path of every node below ``top``."""
    found: set[str] = set()
    level = [top]
    while level:
        lists = await store.children_many(level)
        level = [
            f"{parent}/{name}" for parent, listed in zip(level, lists, strict=True) if listed for name in listed.names
        ]
        found.update(path[len(top) + 1 :] for path in level)
    return found


def strange_in(names: Collection[str], bookies: Collection[str]) -> list[str]:
    """Return the names below a ledgers root that Apache does not use; ``bookies`` are the ids of all bookies so far.

    A name that Apache uses in one place is strange in every other.
    """
    one_of_them = "|".join(re.escape(bookie) for bookie in bookies)
    of_bookies = rf"(available|available/readonly|cookies)/({one_of_them})"
    known = re.compile("|".join((*_KNOWN_TO_APACHE, of_bookies)))
    return sorted(name for name in names if not known.fullmatch(name))


async def check_all_nodes_known(store: ZooKeeperStore, root: str, bookies: Collection[str]) -> None:
    """Check that Apache knows every node below a cluster's ledgers root; ``bookies`` as for ``strange_in``."""
    assert strange_in(await names_below(store, root), bookies) == []
