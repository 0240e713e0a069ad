"""Apache's bookies with DbLedgerStorage list no entries: a loss among them is healed and checked by reading."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bookie.client.connect import ConnectedBookKeeper
from bookie.client.held_entries import HeldEntriesReader
from bookie.embedded.apache import ApacheCluster
from bookie.embedded.apache_settings import ApacheOptions, ApacheStorage
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.run import RunKind
from bookie.runtime.clock import SystemClock
from bookie.wire.port import Status
from bookie.wire.requests import ListEntries
from tests.apache.conftest import OwnCluster
from tests.apache.driver import JavaDriver, expected
from tests.apache.programs import Audit, Replicator
from tests.apache.test_heal import PASSWORD, SIZES, damaged_by_apaches_checker, members, write_everything
from tests.apache.worlds import connect, gone
from tests.sessions import kill9

pytestmark = pytest.mark.apache

NO_SUCH_LEDGER = LedgerId(1 << 40)


@pytest.fixture
async def client(apache_cluster: ApacheCluster) -> AsyncIterator[ConnectedBookKeeper]:
    async with await connect(apache_cluster.metadata_uri) as client:
        yield client


async def test_the_entries_of_a_bookie_without_lists_are_found_by_reading(
    apache_cluster: ApacheCluster, java: JavaDriver, client: ConnectedBookKeeper
) -> None:
    handle = await java.create(5, 2, 2)
    await handle.write(50, seed="unlisted", sizes=SIZES)
    await handle.close()
    ledger_id, transport = LedgerId(handle.ledger_id), client.ports.transport
    ensemble = (await java.call("metadata", ledger=ledger_id))["ensembles"]["0"]
    asking = HeldEntriesReader(transport, SystemClock(), 10.0)
    for bookie in apache_cluster.bookies:
        position = ensemble.index(bookie.bookie_id)
        stored = [entry for entry in range(50) if position in (entry % 5, (entry + 1) % 5)]
        for _ in range(2):
            listed = await transport.ask(BookieId(bookie.bookie_id), ListEntries(ledger_id), 10.0)
            assert listed.status is Status.UNSUPPORTED
        held = await asking.held(bookie.bookie_id, ledger_id, map(EntryId, range(60)))
        assert (held.status, list(held.entries)) == (Status.OK, stored)
        assert (await transport.ask(bookie.bookie_id, ListEntries(NO_SUCH_LEDGER), 10.0)).status is Status.NO_LEDGER


@pytest.mark.long  # the gate has the test above, and a repair with a check on such bookies in test_unreadable_copies
async def test_a_loss_among_bookies_without_lists_is_repaired_and_checked_by_sample(
    own_cluster: OwnCluster, audit: Audit, tmp_path: Path
) -> None:
    cluster, java = await own_cluster(bookies=6, options=ApacheOptions(storage=ApacheStorage.DB))
    ledgers, victim = await write_everything(java, cluster)
    uri = cluster.metadata_uri
    before = await audit(uri, tmp_path, RunKind.REPLICAS, is_dry_run=True)
    assert (before["complete"], before["replicas"]["unknown"]) == (True, [])
    # While the bookie is stopped, others may acknowledge the entry at which the writer notices this.
    lacking = {bookie["bookie_id"] for bookie in before["bookies"] if bookie["ledgers_found"]}
    assert lacking <= {victim.bookie_id}

    await kill9(cluster.zookeeper, victim)
    shutil.rmtree(victim.directory)
    lost = victim.bookie_id
    async with await connect(uri) as client:
        await gone(client, lost)
    hurt = {ledger.ledger_id for ledger in ledgers if lost in await members(java, ledger)}
    await audit(uri, tmp_path)
    assert {task["ledger"] for task in (await java.call("tasks"))["tasks"]} == hurt

    replicators = await asyncio.gather(
        *(
            Replicator.start(uri, tmp_path / f"replicator-{number}", "--once", "--open-ledger-grace", "1")
            for number in (1, 2)
        )
    )
    assert [await replicator.wait() for replicator in replicators] == [0, 0]
    assert sorted(ledger_id for each in replicators for ledger_id in each.repaired) == sorted(hurt)

    assert (await java.call("tasks"))["tasks"] == []
    assert await damaged_by_apaches_checker(java, ledgers) == set()
    for ledger in ledgers:
        assert lost not in await members(java, ledger)
        for wire in ("v2", "v3"):
            read = await java.read_all(ledger.ledger_id, digest=ledger.digest, password=PASSWORD, client=wire)
            assert read == expected(ledger.contents)

    after = await audit(uri, tmp_path, RunKind.REPLICAS)
    assert (after["verdict"], after["complete"]) == ("clean", True)
    assert after["replicas"]["unknown"] == []
    named = [set(await members(java, ledger)) for ledger in ledgers if ledger.entries]
    for bookie in {each.bookie_id for each in cluster.bookies} - {lost}:
        (sampled,) = [each["ledgers"] for each in after["replicas"]["sampled"] if each["bookie_id"] == bookie]
        assert 0 < sampled <= sum(bookie in each for each in named)
