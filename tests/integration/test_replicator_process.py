"""Replicator processes on a real cluster: a graceful stop, and a kill during a repair that the next one finishes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bookie.client.bookkeeper import LedgerOptions
from bookie.client.connect import ConnectedBookKeeper
from bookie.embedded.cluster import EmbeddedCluster
from bookie.embedded.process import ManagedProcess
from bookie.model.ids import BookieId, LedgerId
from tests.deadlines import PROGRAM_S, STATE_S
from tests.integration.clusters import connected, kill_bookies, start_cluster
from tests.sessions import kill9

pytestmark = pytest.mark.integration

ENTRIES = 4000


def payload(entry: int) -> bytes:
    return f"{entry} ".encode() * 300


async def marked_ledger(cluster: EmbeddedCluster, client: ConnectedBookKeeper) -> tuple[LedgerId, BookieId]:
    """Write a closed ledger of several MiB, stop one of its bookies, and mark the ledger for repair."""
    async with await client.create_ledger(LedgerOptions(3, 3, 2)) as writer:
        for entry in range(ENTRIES):
            await writer.submit(payload(entry))
    lost = next(bookie for bookie in cluster.bookies if bookie.bookie_id in writer.metadata.members())
    await kill_bookies(cluster, lost)
    await client.ports.tasks.initialize()
    await client.ports.tasks.marking.mark(writer.ledger_id, [lost.bookie_id])
    return writer.ledger_id, lost.bookie_id


def replicator(cluster: EmbeddedCluster, directory: Path, name: str, *options: str) -> ManagedProcess:
    arguments = [sys.executable, "-m", "replicator", "--metadata-uri", cluster.metadata_uri, *options]
    return ManagedProcess.start(name, arguments, log_path=directory / f"{name}.log")


async def wait_locked(client: ConnectedBookKeeper, process: ManagedProcess, ledger_id: LedgerId) -> None:
    async def is_locked() -> bool:
        return ledger_id in await client.ports.tasks.locks.locked()

    await process.wait_until(is_locked, "to lock the ledger", STATE_S)


async def test_the_next_replicator_finishes_interrupted_repairs(tmp_path: Path) -> None:
    async with (
        await start_cluster(tmp_path, 4) as cluster,
        await connected(cluster) as client,
    ):
        ledger_id, lost = await marked_ledger(cluster, client)
        before = await client.ports.ledgers.read(ledger_id)
        slow = ("--bytes-per-second", "100000")

        polite = replicator(cluster, tmp_path, "polite", *slow, "--grace", "0")
        await wait_locked(client, polite, ledger_id)
        assert await polite.stop(STATE_S) == 0
        assert ledger_id not in await client.ports.tasks.locks.locked()
        assert await client.ports.tasks.read(ledger_id) is not None

        killed = replicator(cluster, tmp_path, "killed", *slow)
        await wait_locked(client, killed, ledger_id)
        await kill9(cluster.zookeeper, killed)
        assert await client.ports.ledgers.read(ledger_id) == before

        last = replicator(cluster, tmp_path, "last", "--once", "--poll-interval", "0.5")
        assert await last.wait(PROGRAM_S) == 0, last.log_tail()
        after = await client.ports.ledgers.read(ledger_id)
        assert lost not in after.metadata.members()
        assert len(after.metadata.members()) == 3
        assert await client.ports.tasks.list() == []
        assert await client.ports.tasks.locks.locked() == frozenset()
        reader = await client.open_ledger(ledger_id)
        assert [entry.payload async for entry in reader.read_all()] == [payload(entry) for entry in range(ENTRIES)]


@pytest.mark.long
async def test_a_replicator_exits_cleanly_while_zookeeper_does_not_answer(tmp_path: Path) -> None:
    async with await start_cluster(tmp_path, 3) as cluster:
        idle = replicator(cluster, tmp_path, "idle", "--output", "json")
        await idle.wait_for_line(r'"event": "ready"', STATE_S)
        cluster.zookeeper.process.pause()
        try:
            assert await idle.stop(STATE_S) == 0, idle.log_tail()
        finally:
            cluster.zookeeper.process.resume()


def test_a_root_without_a_cluster_is_a_configuration_error(
    zookeeper_uri_of_nothing: str,
) -> None:
    command = [sys.executable, "-m", "replicator", "--metadata-uri", zookeeper_uri_of_nothing, "--once"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=PROGRAM_S)
    assert result.returncode == 78, result.stderr
    assert "no cluster at /nothing/ledgers" in result.stderr
    assert result.stdout == ""


@pytest.fixture
def zookeeper_uri_of_nothing(request: pytest.FixtureRequest) -> str:
    return f"zk://{request.getfixturevalue('zookeeper').connect_string}/nothing/ledgers"
