"""Five bookies, ensembles of five, one killed: nothing can be repaired until a sixth joins, and nothing is lost."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from bookie.client.bookkeeper import LedgerOptions
from bookie.client.connect import ConnectedBookKeeper, connect
from bookie.embedded.cluster import EmbeddedCluster
from bookie.embedded.process import ManagedProcess
from bookie.metadata.own_state import ParkReason
from bookie.model.ids import BookieId, LedgerId

pytestmark = pytest.mark.integration

LEDGERS = 6
ENTRIES = 40
_DEADLINE_S = 120.0


def payload(ledger: int, entry: int) -> bytes:
    return f"{ledger}/{entry} ".encode() * (1 + entry)


async def write(client: ConnectedBookKeeper) -> list[LedgerId]:
    ids = []
    for index in range(LEDGERS):
        async with await client.create_ledger(LedgerOptions(5, 3, 2)) as writer:
            for entry in range(ENTRIES):
                await writer.submit(payload(index, entry))
        ids.append(writer.ledger_id)
    return ids


async def read_all(client: ConnectedBookKeeper, ids: list[LedgerId]) -> list[list[bytes]]:
    return [[entry.payload async for entry in (await client.open_ledger(ledger_id)).read_all()] for ledger_id in ids]


async def wait_gone(client: ConnectedBookKeeper, bookie: BookieId) -> None:
    async with asyncio.timeout(_DEADLINE_S):
        seen = await client.ports.registrations.list()
        while bookie in seen.registered:
            seen = await client.ports.registrations.wait_changed(seen)


async def wait_reasons(client: ConnectedBookKeeper, expected: dict[LedgerId, ParkReason]) -> None:
    """Until exactly these ledgers are marked, each parked with its reason."""
    async with asyncio.timeout(_DEADLINE_S):
        while True:
            marked = {task.ledger_id for task in await client.ports.tasks.list()}
            parked = {park.ledger_id: park.reason for park in await client.parked.list() if park.ledger_id in marked}
            if marked == set(expected) and parked == expected:
                return
            await asyncio.sleep(0.1)


async def audit(cluster: EmbeddedCluster, directory: Path) -> None:
    arguments = [sys.executable, "-m", "spark_jobs.audit", "--metadata-uri", cluster.metadata_uri]
    process = ManagedProcess.start(
        "audit", [*arguments, "--report-dir", str(directory / "reports")], log_path=directory / "audit.log"
    )
    assert await process.wait(_DEADLINE_S) == 0, process.log_tail()


async def test_tasks_wait_parked_until_a_sixth_bookie_heals_them(tmp_path: Path) -> None:
    async with (
        await EmbeddedCluster.start(tmp_path, bookies=5) as cluster,
        await connect(cluster.metadata_uri) as client,
    ):
        ids = await write(client)
        expected = [[payload(index, entry) for entry in range(ENTRIES)] for index in range(LEDGERS)]
        dead = cluster.bookies[2]
        await dead.kill9()
        await wait_gone(client, dead.bookie_id)
        assert await read_all(client, ids) == expected

        await audit(cluster, tmp_path)
        replicator = ManagedProcess.start(
            "replicator",
            [sys.executable, "-m", "replicator", "--metadata-uri", cluster.metadata_uri],
            log_path=tmp_path / "replicator.log",
        )
        async with replicator:
            await wait_reasons(client, dict.fromkeys(ids, ParkReason.NO_CANDIDATE_BOOKIE))
            (sixth,) = await cluster.add_bookies(1)
            await wait_reasons(client, {})

        for ledger_id in ids:
            members = (await client.ports.ledgers.read(ledger_id)).metadata.members()
            assert dead.bookie_id not in members
            assert sixth.bookie_id in members
        assert await read_all(client, ids) == expected
