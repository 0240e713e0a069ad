"""The backlog counted in a thread: the figures are the same, and its sessions are separate and short."""

from __future__ import annotations

import asyncio
import random
import threading
from contextlib import AsyncExitStack
from typing import Any

import pytest

from auditor.api.control import Backlog
from auditor.service.watch import backlog
from auditor.service.watch.backlog import CountsApart, backlog_counter
from bookie.embedded.zookeeper import EmbeddedZooKeeper
from bookie.metadata.cluster import Cluster, format_cluster, open_cluster
from bookie.metadata.ledgers.ledgers import LedgerStore
from bookie.metadata.store.zookeeper import ZooKeeperStore
from bookie.metadata.tasks.underreplication import UnderReplication
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import Fragment, LedgerMetadata
from bookie.model.severity import Severity
from bookie.runtime.clock import SystemClock
from tests.deadlines import STATE_S

LEDGERS = 3_000


async def fill(store: ZooKeeperStore, cluster: Cluster) -> None:
    fragment = Fragment(EntryId(0), (BookieId("a:1"), BookieId("b:1")))
    ledger = LedgerMetadata(2, 2, 2, (fragment,)).closed(EntryId(9), 1000)
    ids = [LedgerId(number) for number in range(LEDGERS)]
    await LedgerStore(store, cluster, random.Random(1)).create_many([(ledger_id, ledger) for ledger_id in ids])
    tasks = UnderReplication(store, cluster, SystemClock())
    await tasks.initialize()
    await tasks.marking.mark_many([(ledger_id, (BookieId("a:1"),)) for ledger_id in ids])


async def test_a_separate_count_gives_the_same_figures_and_keeps_its_session(
    zookeeper: EmbeddedZooKeeper, fresh_root: str
) -> None:
    opened: list[ZooKeeperStore] = []

    async def open_session(stack: AsyncExitStack) -> tuple[ZooKeeperStore, Cluster]:
        store = await ZooKeeperStore.connect(zookeeper.connect_string)
        stack.push_async_callback(store.close)
        opened.append(store)
        return store, await open_cluster(store, fresh_root)

    store = await ZooKeeperStore.connect(zookeeper.connect_string)
    apart = CountsApart(open_session, SystemClock())
    try:
        await format_cluster(store, fresh_root, rng=random.Random(1))
        cluster = await open_cluster(store, fresh_root)
        await fill(store, cluster)
        here = await backlog_counter(store, cluster, SystemClock()).count()
        there = await apart.count()
        assert there.severities == here.severities
        assert there.severities[Severity.NO_LIVE_COPY].ledgers == LEDGERS

        cancelled = asyncio.create_task(apart.count())
        await asyncio.sleep(0)
        cancelled.cancel()
        assert (await apart.count()).ledgers == LEDGERS
        assert len(opened) == 1
    finally:
        await apart.close()
        await store.close()


async def test_closing_ends_a_count_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Event()

    class Endless:
        async def count(self) -> Backlog:
            begun.set()
            return await asyncio.Event().wait()  # type: ignore[return-value]

    async def open_session(stack: AsyncExitStack) -> Any:
        return None, None

    monkeypatch.setattr(backlog, "backlog_counter", lambda *_: Endless())
    apart = CountsApart(open_session, SystemClock())
    counting = asyncio.ensure_future(apart.count())
    await asyncio.to_thread(begun.wait, STATE_S)
    await apart.close()
    with pytest.raises(asyncio.CancelledError):
        await counting


async def test_an_unavailable_store_is_retried_with_a_new_session(
    zookeeper: EmbeddedZooKeeper, fresh_root: str
) -> None:
    attempts = 0

    async def open_session(stack: AsyncExitStack) -> tuple[ZooKeeperStore, Cluster]:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise ConnectionError("not there yet")
        store = await ZooKeeperStore.connect(zookeeper.connect_string)
        stack.push_async_callback(store.close)
        return store, await open_cluster(store, fresh_root)

    store = await ZooKeeperStore.connect(zookeeper.connect_string)
    apart = CountsApart(open_session, SystemClock())
    try:
        await format_cluster(store, fresh_root, rng=random.Random(1))
        await UnderReplication(store, await open_cluster(store, fresh_root), SystemClock()).initialize()
        (failed,) = await asyncio.gather(apart.count(), return_exceptions=True)
        assert isinstance(failed, ConnectionError)
        assert (await apart.count()).ledgers == 0
        assert attempts == 2
    finally:
        await apart.close()
        await store.close()
