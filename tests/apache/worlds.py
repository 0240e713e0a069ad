"""A cluster for the tests of one file, and ledgers on it whose every byte Apache's client can be asked for."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from bookie.client.connect import ConnectedBookKeeper
from bookie.embedded.apache import ApacheBookie, ApacheCluster
from bookie.embedded.apache_jars import ApacheJvm
from bookie.metadata.zookeeper import ZooKeeperStore
from bookie.model.ids import BookieId
from tests.apache.driver import JavaDriver, JavaError, JavaHandle, expected, payloads
from tests.apache.waiting import DEADLINE_S, until

SIZES: Final = (0, 1, 100, 3000)
PASSWORD: Final = b"secret"
LOADED_S: Final = 3 * DEADLINE_S
"""For what takes a machine that does much else a while; never reached where the test passes."""
QUICK: Final[Mapping[str, str]] = {
    "rwRereplicateBackoffMs": "500",
    # It ends with its session, and fails what is not answered in time: not at each stall of a busy machine.
    "zkTimeout": "20000",
    "addEntryTimeoutSec": "40",
    "readEntryTimeoutSec": "40",
}
"""For Apache's auto-recovery."""
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
    "underreplication/(checkallledgersctime|placementpolicycheckctime|replicascheckctime)",
    r"underreplication/ledgers(/[0-9a-f]{4}){0,4}",
    rf"underreplication/ledgers(/[0-9a-f]{{4}}){{4}}/{_TASK}",
    rf"underreplication/locks(/{_TASK})?",
)
"""Paths below a ledgers root, but for those that end in a bookie's id."""

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class World:
    """A cluster and Apache's client on it."""

    cluster: ApacheCluster
    java: JavaDriver

    @property
    def uri(self) -> str:
        """How clients reach the cluster."""
        return self.cluster.metadata_uri

    @property
    def running(self) -> list[ApacheBookie]:
        """Apache's bookies that run."""
        return [bookie for bookie in self.cluster.bookies if bookie.running.is_running]

    def bookie(self, bookie_id: str) -> ApacheBookie:
        """The bookie of that id."""
        return next(bookie for bookie in self.cluster.bookies if bookie.bookie_id == bookie_id)

    async def tasks(self) -> dict[int, list[str]]:
        """Every task as Apache's client lists them: ledger and missing bookies."""
        return {task["ledger"]: task["missing"] for task in (await self.java.call("tasks"))["tasks"]}


@contextmanager
def world(
    directory: Path, jvm: ApacheJvm, classes: Path, kind: type[ApacheCluster] = ApacheCluster, **arguments: Any
) -> Iterator[World]:
    """A cluster with a Java driver for the tests of a file; arguments as for ``ApacheCluster.start``."""
    stack = AsyncExitStack()

    async def start() -> World:
        given: dict[str, Any] = {"is_zookeeper_durable": False, "java": jvm.java} | arguments
        cluster = await kind.start(directory / "cluster", **given)
        stack.push_async_callback(cluster.stop)
        driver = await JavaDriver.start(directory / "driver", cluster, jvm, classes)
        stack.push_async_callback(driver.stop)
        return World(cluster, driver)

    try:
        yield asyncio.run(start())
    finally:
        asyncio.run(stack.aclose())


@dataclass(frozen=True)
class Ledger:
    """A ledger that Apache's client wrote, and can be asked for."""

    ledger_id: int
    digest: str
    entries: int

    @property
    def contents(self) -> list[bytes]:
        """The payloads."""
        return payloads(self.digest, range(self.entries), SIZES)


@dataclass(frozen=True)
class Seen:
    """Metadata of a ledger as Apache reads it."""

    version: int
    ensembles: Mapping[str, Sequence[str]]

    @property
    def members(self) -> set[str]:
        """Every bookie that is named."""
        return {member for members in self.ensembles.values() for member in members}

    def fragments_with(self, bookie: str) -> int:
        """How many fragments name ``bookie``."""
        return sum(bookie in members for members in self.ensembles.values())


async def each(items: Sequence[T], work: Callable[[T], Awaitable[R]]) -> list[R]:
    """Do ``work`` for every item, a few at a time; the results in order."""
    turn = asyncio.Semaphore(_AT_A_TIME)

    async def one(item: T) -> R:
        async with turn:
            return await work(item)

    return list(await asyncio.gather(*(one(item) for item in items)))


async def begin(java: JavaDriver, shape: Sequence[int], digest: str = "CRC32C", client: str = "v3") -> JavaHandle:
    """Create a ledger that ``extend`` and ``finish`` go on with."""
    return await java.create(*shape, digest=digest, password=PASSWORD, client=client)


async def extend(handle: JavaHandle, digest: str, entries: int) -> None:
    """Append entries as ``Ledger.contents`` has them."""
    await handle.write(entries, seed=digest, sizes=SIZES)


async def written(
    java: JavaDriver, shapes: Sequence[Sequence[int]], count: int, entries: int = 10, client: str = "v3"
) -> list[Ledger]:
    """``count`` closed ledgers, of these shapes in turn."""

    async def one(number: int) -> Ledger:
        digest = ("CRC32C", "MAC")[number % 2]
        handle = await begin(java, shapes[number % len(shapes)], digest, client)
        await extend(handle, digest, entries)
        await handle.close()
        return Ledger(handle.ledger_id, digest, entries)

    return await each(range(count), one)


async def seen(java: JavaDriver, ledgers: Sequence[Ledger]) -> dict[int, Seen]:
    """The metadata of each."""

    async def one(ledger: Ledger) -> Seen:
        found = await java.call("metadata", ledger=ledger.ledger_id)
        return Seen(int(found["version"]), found["ensembles"])

    found = await each(ledgers, one)
    return {ledger.ledger_id: metadata for ledger, metadata in zip(ledgers, found, strict=True)}


async def all_is_well(java: JavaDriver, ledgers: Sequence[Ledger], clients: Sequence[str] = ("v2", "v3")) -> None:
    """Apache's checker finds nothing, and Apache's client reads every byte, in both versions of the protocol.

    For ledgers whose entries are acknowledged by all copies: what a smaller quorum acknowledged may be short for good.
    """

    async def one(ledger: Ledger) -> None:
        checked = await java.call("check", ledger=ledger.ledger_id, client=clients[-1])
        assert checked["fragments"] == [], ledger
        for client in clients:
            read = await java.read_all(ledger.ledger_id, digest=ledger.digest, password=PASSWORD, client=client)
            assert read == expected(ledger.contents), (ledger, client)

    await each(ledgers, one)


async def held(java: JavaDriver, bookie: str, ledger_id: int, client: str = "v3") -> int:
    """How many entries of a ledger a bookie has."""
    try:
        listed = await java.call("available_entries", bookie=bookie, ledger=ledger_id, client=client)
    except JavaError as error:
        if error.kind in ("BKNoSuchLedgerExistsException", "BKNoSuchEntryException"):
            return 0
        raise
    return int(listed["total"])


async def gone(client: ConnectedBookKeeper, *bookies: BookieId) -> None:
    """Wait until ZooKeeper knows that these bookies are not there any more."""
    await until(
        client.ports.registrations.list,
        lambda found: not found.registered & set(bookies),
        f"{', '.join(bookies)} is known to be gone",
    )


async def no_work_left(world: World, client: ConnectedBookKeeper, deadline_s: float = LOADED_S) -> None:
    """Wait until no ledger is marked and none is locked."""

    async def look() -> tuple[int, int]:
        return len(await client.ports.tasks.list()), len(await client.ports.tasks.locked())

    await until(look, lambda left: left == (0, 0), "no task and no lock is left", deadline_s)
    assert await world.tasks() == {}


async def names_below(store: ZooKeeperStore, top: str) -> set[str]:
    """Every node below ``top``, as a path from there."""
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
    """Those of these names below a ledgers root that Apache has no use for; ``bookies`` are the ids of all there were.

    A name that is fine in one place is strange in every other.
    """
    one_of_them = "|".join(re.escape(bookie) for bookie in bookies)
    of_bookies = rf"(available|available/readonly|cookies)/({one_of_them})"
    known = re.compile("|".join((*_KNOWN_TO_APACHE, of_bookies)))
    return sorted(name for name in names if not known.fullmatch(name))


async def nothing_strange(store: ZooKeeperStore, root: str, bookies: Collection[str]) -> None:
    """Below a cluster's ledgers root there is no node that Apache does not know; ``bookies`` as for ``strange_in``."""
    assert strange_in(await names_below(store, root), bookies) == []
