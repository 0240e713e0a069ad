"""Five bookies, ensembles of five, one killed: nothing can be repaired until a sixth joins, and nothing is lost."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bookie.client.bookkeeper import LedgerOptions
from bookie.client.connect import ConnectedBookKeeper
from bookie.embedded.process import ManagedProcess
from bookie.metadata.tasks.parked import ParkReason
from bookie.model.ids import LedgerId
from spark_jobs.runs.run import run_audit
from spark_jobs.settings import AuditSettings
from tests.deadlines import STATE_S
from tests.integration.clusters import connected, kill_bookies, start_cluster
from tests.worlds.entries import numbered_payload

pytestmark = [pytest.mark.integration, pytest.mark.spark]

LEDGERS = 6
ENTRIES = 40


def payload(ledger: int, entry: int) -> bytes:
    return numbered_payload(ledger, entry, 1 + entry)


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


async def wait_reasons(client: ConnectedBookKeeper, expected: dict[LedgerId, ParkReason]) -> None:
    """Wait until exactly these ledgers are marked, each parked with its reason."""
    async with asyncio.timeout(STATE_S):
        while True:
            marked = {task.ledger_id for task in await client.ports.tasks.list()}
            parked = {park.ledger_id: park.reason for park in await client.parked.list() if park.ledger_id in marked}
            if marked == set(expected) and parked == expected:
                return
            await asyncio.sleep(0.1)


async def test_tasks_stay_parked_until_a_sixth_bookie_allows_their_repair(spark: SparkSession, tmp_path: Path) -> None:
    async with (
        await start_cluster(tmp_path, 5) as cluster,
        await connected(cluster) as client,
    ):
        ids = await write(client)
        expected = [[payload(index, entry) for entry in range(ENTRIES)] for index in range(LEDGERS)]
        dead = cluster.bookies[2]
        await kill_bookies(cluster, dead)
        assert await read_all(client, ids) == expected

        settings = AuditSettings(cluster.metadata_uri, tmp_path / "reports")
        audit = await asyncio.to_thread(run_audit, spark, settings)
        assert audit.summary.published.ledgers == LEDGERS
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
