"""An Apache bookie returns with empty disks while ledgers are written, and denies entries that it acknowledged.

The ledgers are open, so only the other members show which entries are missing.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bookie.client.connect import ConnectedBookKeeper
from bookie.embedded.apache import LEDGERS_ROOT, ApacheBookie, ApacheCluster
from bookie.metadata.layout import cookie_path
from bookie.metadata.store.zookeeper import ZooKeeperStore
from bookie.model.ids import BookieId
from tests.apache.driver import JavaDriver, JavaHandle
from tests.apache.programs import Replicator
from tests.apache.worlds import PASSWORD, SIZES, ApacheWorld, Ledger, check_healthy, connect, extend, gone, held, on

pytestmark = pytest.mark.apache

ENTRIES = 20


async def lose_disks(cluster: ApacheCluster, client: ConnectedBookKeeper, bookie: ApacheBookie) -> None:
    """Delete a killed bookie's disks and its cookie, with which it would not start without the disks."""
    await gone(client, BookieId(bookie.bookie_id))
    store = await ZooKeeperStore.connect(cluster.zookeeper.connect_string)
    try:
        await store.delete(cookie_path(LEDGERS_ROOT, BookieId(bookie.bookie_id)))
    finally:
        await store.close()
    for directory in ("journal", "ledgers"):
        shutil.rmtree(bookie.directory / directory)


async def state(java: JavaDriver, ledger_id: int) -> tuple[str, int]:
    """Return the state of a ledger and its number of fragments."""
    found = await java.call("metadata", ledger=ledger_id)
    return found["state"], len(found["ensembles"])


async def an_open_ledger(java: JavaDriver, shape: tuple[int, int, int], victim: ApacheBookie) -> JavaHandle:
    """Write an open ledger with entries on ``victim``."""
    handle = await on(java, {victim.bookie_id}, *shape, password=PASSWORD)
    await extend(handle, "CRC32C", ENTRIES)
    return handle


async def test_a_wiped_bookie_gets_its_entries_back_and_writers_continue(lent: ApacheWorld, tmp_path: Path) -> None:
    cluster, java = lent.cluster, lent.java
    victim = cluster.bookies[1]
    left = [await an_open_ledger(java, shape, victim) for shape in ((3, 3, 2), (3, 2, 2))]
    idle = [await an_open_ledger(java, shape, victim) for shape in ((3, 3, 2), (2, 2, 2))]
    await lent.kill9(victim)
    for handle in left:  # the writer begins a second fragment
        await handle.write_past_a_loss(ENTRIES, seed="CRC32C", sizes=SIZES)
    async with await connect(cluster.metadata_uri) as client:
        await lose_disks(cluster, client, victim)
        await victim.start()
        for handle in (*left, *idle):
            assert await held(java, victim.bookie_id, handle.ledger_id) == 0
            await java.call("mark", ledger=handle.ledger_id, missing=[victim.bookie_id])
        replicator = await Replicator.start(
            cluster.metadata_uri, tmp_path / "replicator", "--once", "--open-ledger-grace", "1"
        )
        assert await replicator.wait() == 0
        assert await client.ports.tasks.list() == []
    assert [await state(java, handle.ledger_id) for handle in (*left, *idle)] == [("OPEN", 2)] * 2 + [("OPEN", 1)] * 2
    for handle in idle:
        assert await held(java, victim.bookie_id, handle.ledger_id) == ENTRIES
    ledgers = [Ledger(handle.ledger_id, "CRC32C", 2 * ENTRIES) for handle in (*left, *idle)]
    for handle in idle:
        await extend(handle, "CRC32C", ENTRIES)
    for handle in (*left, *idle):
        await handle.close()
    await check_healthy(java, ledgers, clients=("v3",))
