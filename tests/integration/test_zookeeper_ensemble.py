"""Three ZooKeeper servers, of which some fail, under bookies, an auditor, a replicator and a writer.

Sessions have their default timeouts, and the lost-bookie delay is zero, so the ledgers of a bookie without a session
would be marked immediately.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator
from typing import cast

import pytest
import pytest_asyncio

from bookie.client.bookkeeper import LedgerOptions
from bookie.client.connect import connect
from bookie.embedded.cluster import LEDGERS_ROOT, EmbeddedCluster
from bookie.embedded.process import ManagedProcess
from bookie.embedded.zookeeper import EmbeddedZooKeeper
from bookie.metadata.cluster import format_cluster
from bookie.metadata.layout import tasks_path
from bookie.metadata.port import StoreUnavailableError
from bookie.metadata.runs.records import Runs
from bookie.metadata.store.zookeeper import ZooKeeperStore
from bookie.model.ids import LedgerId
from bookie.model.run import RunCause
from bookie.runtime.clock import SystemClock
from tests.deadlines import STATE_S
from tests.ensemble import Ensemble, prepared_ensemble
from tests.faults.network import Network
from tests.integration.auditors import AuditorProcess, when
from tests.integration.repair_world import BOOKIES, ENTRIES, RepairWorld, payload
from tests.integration.stopping_replicator_child import Step
from tests.links import Trouble
from tests.sessions import Killable

pytestmark = [
    pytest.mark.integration,
    pytest.mark.spark,
    pytest.mark.long,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.usefixtures("quick_spark"),
]

RUNS_MAX = 100


class EnsembleWorld(RepairWorld):
    """A world in which sessions end only by their timeout."""

    async def kill9(self, *killed: Killable | ManagedProcess) -> None:
        """Kill these with SIGKILL, and return when the bookies among them are no longer registered."""
        processes = [one if isinstance(one, ManagedProcess) else one.running for one in killed]
        for process in processes:
            process.kill9()
        gone = {bookie.bookie_id for bookie in self.cluster.bookies if bookie.running in processes}

        async def are_gone() -> bool:
            return not gone & (await self.client.ports.registrations.list()).registered

        await when(are_gone, STATE_S)

    async def is_quiet(self) -> bool:
        """Return whether all bookies are registered."""
        try:
            registered = (await self.client.ports.registrations.list()).registered
        except StoreUnavailableError:
            return False
        return registered >= {bookie.bookie_id for bookie in self.cluster.bookies}

    async def marks(self) -> int:
        """Return a number that changes with each creation and removal of a mark."""
        await self.client.store.sync(tasks_path(LEDGERS_ROOT))
        stat = await self.client.store.stat(tasks_path(LEDGERS_ROOT))
        assert stat is not None
        return stat.children_version


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def network() -> AsyncIterator[Network]:
    made = Network()
    yield made
    await made.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ensemble(network: Network, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ensemble]:
    made = await prepared_ensemble(tmp_path_factory.mktemp("ensemble"), link=network.between_servers)
    try:
        await made.start()
        yield made
    finally:
        await made.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(ensemble: Ensemble, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EnsembleWorld]:
    home = tmp_path_factory.mktemp("ensemble-world")
    store = await ZooKeeperStore.connect(ensemble.connect_string)
    await format_cluster(store, LEDGERS_ROOT, rng=random.Random(1))
    await store.close()
    # A cluster uses only the address of its server, and stops it at the end.
    cluster = EmbeddedCluster(home, cast(EmbeddedZooKeeper, ensemble), serves_metrics=True)
    try:
        await cluster.add_bookies(BOOKIES)
        async with await connect(cluster.metadata_uri) as client:
            made = EnsembleWorld(cluster, client, home)
            yield made
            await made.whole()
    finally:
        await asyncio.gather(*(bookie.stop() for bookie in cluster.bookies))


async def test_killing_the_servers_one_after_another_causes_no_mark_no_copy_and_no_failed_append(
    world: EnsembleWorld, ensemble: Ensemble
) -> None:
    await world.client.ports.tasks.initialize()
    auditor = AuditorProcess(world.cluster, world.home, "auditor", "--session-timeout-s", "10")
    world.replicator()
    await auditor.ready()
    await when(auditor.leads)
    before = await world.marks()
    is_over = asyncio.Event()

    async def write() -> LedgerId:
        async with await world.client.create_ledger(LedgerOptions(3, 3, 2)) as writer:
            while not is_over.is_set():
                await writer.append(payload(writer.ledger_id, writer.last_add_confirmed + 1))
        return writer.ledger_id

    writing = asyncio.create_task(write())
    leader = await ensemble.leader()
    for server in (*(each for each in ensemble.servers if each is not leader), leader):
        server.process.kill9()
        await server.process.wait(STATE_S)
        await when(world.is_quiet)
        server.start()
        await server.wait()
    await when(world.is_quiet)
    is_over.set()
    metadata = await world.metadata(await writing)

    assert len(metadata.fragments) == 1, "a bookie was replaced"
    assert await world.marks() == before
    causes = {
        run.cause for run in await Runs(world.client.store, LEDGERS_ROOT).list(RUNS_MAX, SystemClock().epoch_ms())
    }
    assert RunCause.BOOKIE_LOSS not in causes
    assert await auditor.process.stop(STATE_S) == 0


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_repair_survives_a_killed_zookeeper_leader(
    world: EnsembleWorld, ensemble: Ensemble, sent: signal.Signals
) -> None:
    """A paused leader keeps its connections, so clients leave it only after their own deadline."""
    repair = await world.repair_at(Step.COPYING)
    [target] = await world.targets(repair)
    assert 0 < await world.held(target, repair.ledger_id) < ENTRIES
    leader = await ensemble.leader()
    os.kill(leader.process.pid, sent)
    try:
        repair.resume()
        await world.assert_repaired(repair, gone=[repair.lost])
        assert target.bookie_id in (await world.metadata(repair.ledger_id)).members()
    finally:
        if sent is signal.SIGSTOP:
            os.kill(leader.process.pid, signal.SIGCONT)
        else:
            await leader.process.wait(STATE_S)
            leader.start()
        await leader.wait()


async def test_a_repair_survives_a_zookeeper_leader_that_is_cut_off_from_the_others(
    world: EnsembleWorld, ensemble: Ensemble, network: Network
) -> None:
    """The leader is still connected to its clients, and ends their connections after it has noticed."""
    repair = await world.repair_at(Step.COPYING)
    [target] = await world.targets(repair)
    leader = await ensemble.leader()
    links = network.links_of_server(ensemble.servers.index(leader))
    for link in links:
        link.set(Trouble.CUT)
    try:
        repair.resume()
        await world.assert_repaired(repair, gone=[repair.lost])
        assert target.bookie_id in (await world.metadata(repair.ledger_id)).members()
        assert not await leader.leads()
    finally:
        for link in links:
            link.set(None)
        await leader.wait()
