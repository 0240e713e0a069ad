"""A session on a lagging server reads a past state, never an older one than before, and after a sync the present."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from bookie.metadata.bookies.cookies import Cookie, CookieStore
from bookie.metadata.bookies.drains import Drain, Drains
from bookie.metadata.bookies.registration import Registrations, ServiceInfo
from bookie.metadata.bookies.topology import TopologyStore
from bookie.metadata.cluster import Cluster, format_cluster, open_cluster
from bookie.metadata.ledgers.ledgers import LedgerStore
from bookie.metadata.port import ANY_VERSION, Create, MetadataStore, NoNodeError
from bookie.metadata.tasks.decisions import Decision, DecisionKind, Decisions
from bookie.metadata.tasks.doubts import DoubtedMembers
from bookie.metadata.tasks.underreplication import UnderReplication
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import Fragment, LedgerMetadata
from bookie.runtime.clock import SystemClock
from tests.simulation.loop import Process, SimLoop
from tests.simulation.store import SimCell, SimStore, StoreFaults
from tests.simulation.trace import Trace

ROOT = "/ledgers"
BK = BookieId("bk:3181")
LEDGER = LedgerId(7)


def two_sessions(lag_s: float) -> tuple[SimStore, SimStore]:
    loop = asyncio.get_running_loop()
    cell, trace = SimCell(loop, lambda *change: None), Trace(loop)
    lags = (0.0, lag_s)
    first, second = (
        SimStore(cell, Process(str(i)), loop, random.Random(i), StoreFaults(0.0, lag_s=lag), trace)
        for i, lag in enumerate(lags)
    )
    return first, second


def on_virtual_time(test: object) -> None:
    assert callable(test)
    loop = SimLoop()
    loop.run_until_complete(test())
    loop.close()


def test_reads_return_old_data_until_sync() -> None:
    async def history() -> None:
        writer, lagging = two_sessions(5.0)
        await writer.create("/a", b"1")
        await asyncio.sleep(10)
        assert (await lagging.get("/a")).data == b"1"
        await writer.set("/a", b"2", ANY_VERSION)
        await writer.create("/b")
        assert (await lagging.get("/a")).data == b"1"
        assert set((await lagging.children("/")).names) == {"a"}
        with pytest.raises(NoNodeError):
            await lagging.get("/b")
        await lagging.sync("/")
        assert (await lagging.get("/a")).data == b"2"
        assert set((await lagging.children("/")).names) == {"a", "b"}

    on_virtual_time(history)


def test_a_session_sees_its_own_writes_at_once_and_others_later() -> None:
    async def history() -> None:
        writer, lagging = two_sessions(5.0)
        await writer.create("/a", b"1")
        await lagging.create("/mine", b"x")
        assert (await lagging.get("/mine")).data == b"x"
        assert (await lagging.get("/a")).data == b"1"
        await writer.set("/a", b"2", ANY_VERSION)
        await writer.delete("/mine")
        assert (await lagging.get("/mine")).data == b"x"
        await asyncio.sleep(6)
        assert (await lagging.get("/a")).data == b"2"
        assert await lagging.stat("/mine") is None

    on_virtual_time(history)


def test_a_transaction_is_visible_completely_or_not_at_all() -> None:
    async def history() -> None:
        writer, lagging = two_sessions(1.0)
        seen: set[tuple[bool, bool]] = set()

        async def look() -> None:
            for _ in range(40):
                nodes = await lagging.get_many(["/a", "/b"])
                seen.add((nodes[0] is not None, nodes[1] is not None))
                await asyncio.sleep(0.1)

        looking = asyncio.get_running_loop().create_task(look())
        await asyncio.sleep(1)
        await writer.multi([Create("/a"), Create("/b")])
        await looking
        assert seen == {(False, False), (True, True)}

    on_virtual_time(history)


class Parts:
    """The parts of a cluster's metadata whose reads are never older than the call, over one session."""

    def __init__(self, store: MetadataStore, cluster: Cluster) -> None:
        self.store = store
        self.registrations = Registrations(store, cluster)
        self.cookies = CookieStore(store, cluster)
        self.ledgers = LedgerStore(store, cluster, random.Random(5))
        self.tasks = UnderReplication(store, cluster, SystemClock())
        self.decisions = Decisions(store, cluster.root)
        self.doubts = DoubtedMembers(store, cluster.root)
        self.drains = Drains(store, cluster.root)
        self.topology = TopologyStore(store, cluster)

    async def change_everything(self, number: int) -> None:
        bookie, ledger_id = BookieId(f"bk{number}:3181"), LedgerId(number)
        await self.registrations.unregister(BK)
        for each in (BK, bookie):
            await self.registrations.register(each, ServiceInfo(()), is_read_only=False, takeover_deadline_s=5)
        cookie, known = Cookie(BK, (f"/journal{number}",), ("/ledgers",)), await self.cookies.version(BK)
        await (self.cookies.create(cookie) if known is None else self.cookies.replace(cookie, known))
        metadata = LedgerMetadata(1, 1, 1, (Fragment(EntryId(0), (bookie,)),))
        if number == 1:
            await self.ledgers.create(LEDGER, metadata)
        else:
            await self.ledgers.write(LEDGER, metadata, (await self.ledgers.read(LEDGER)).version)
        await self.tasks.marking.mark(ledger_id, [bookie])
        await self.store.multi(
            [await self.decisions.writing(Decision(LEDGER, DecisionKind.DROPPED, str(bookie), 0, ""))]
        )
        await self.doubts.add(LEDGER, [bookie])
        await self.drains.start(Drain(bookie))
        await self.topology.write(f'{{"{bookie}": "/rack{number}"}}')


async def version_of_registrations(parts: Parts) -> str:
    return (await parts.registrations.observe()).version


CURRENT_READS: dict[str, Callable[[Parts], Awaitable[object]]] = {
    "registered bookies": lambda parts: parts.registrations.list(),
    "version of the registrations": lambda parts: version_of_registrations(parts),
    "numbers of registrations": lambda parts: parts.registrations.numbers([BK]),
    "disks": lambda parts: parts.registrations.disks([BK]),
    "a ledger": lambda parts: parts.ledgers.current(LEDGER),
    "marked ledgers": lambda parts: parts.tasks.ids(),
    "a page of tasks": lambda parts: parts.tasks.page(None, 10),
    "a decision": lambda parts: parts.decisions.get(LEDGER),
    "all decisions": lambda parts: parts.decisions.list(),
    "doubted members": lambda parts: parts.doubts.get(LEDGER),
    "drains": lambda parts: parts.drains.read(),
    "drains and their check": lambda parts: parts.drains.current(),
    "topology": lambda parts: parts.topology.read(),
}


@pytest.mark.parametrize("name", CURRENT_READS)
def test_reads_that_must_be_current_are_current_on_a_lagging_server(name: str) -> None:
    read = CURRENT_READS[name]

    async def history() -> None:
        writer, lagging = two_sessions(5.0)
        await format_cluster(writer, ROOT, rng=random.Random(3))
        cluster = await open_cluster(writer, ROOT)
        here, there = Parts(writer, cluster), Parts(lagging, cluster)
        await here.change_everything(1)
        await asyncio.sleep(10)
        before = await read(there)
        assert before == await read(here)
        await here.change_everything(2)
        after = await read(there)
        assert after != before
        assert after == await read(here)

    on_virtual_time(history)
