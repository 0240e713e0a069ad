"""Every bookie dies at the same moment while ledgers are written, as if the power had failed everywhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookie.client.connect import connect
from bookie.embedded.cluster import EmbeddedCluster
from tests.deadlines import STATE_S
from tests.integration.writer_child import WriterProcess, payload
from tests.sessions import LONG_SESSION_S, kill9

pytestmark = pytest.mark.integration

LEDGERS = 3
ENOUGH = 300
"""Acknowledged entries of each ledger before the bookies die: some batches of each."""


async def test_whatever_was_acknowledged_is_read_after_all_bookies_were_killed_at_once(tmp_path: Path) -> None:
    async with await EmbeddedCluster.start(
        tmp_path / "cluster", bookies=3, is_zookeeper_durable=False, session_timeout_s=LONG_SESSION_S
    ) as cluster:
        writer = WriterProcess(cluster.metadata_uri, tmp_path, ledgers=LEDGERS)

        async def is_under_load() -> bool:
            counts = [len(entries) for entries in writer.acknowledged().values()]
            return len(counts) == LEDGERS and min(counts) >= ENOUGH

        async with writer.process:
            await writer.process.wait_until(is_under_load, f"{ENOUGH} entries of each ledger", STATE_S)
            await kill9(cluster.zookeeper, *cluster.bookies)
        acknowledged = writer.acknowledged()
        for bookie in cluster.bookies:
            bookie.launch()
        for bookie in cluster.bookies:
            await bookie.wait_ready()
        async with await connect(cluster.metadata_uri, session_timeout_s=LONG_SESSION_S) as client:
            for ledger_id, entries in acknowledged.items():
                assert entries == list(range(len(entries))), "acknowledged in order"
                reader = await client.open_ledger(ledger_id, recover=True)
                found = [entry.payload async for entry in reader.read_all()]
                assert len(found) >= len(entries)
                assert found == [payload(ledger_id, entry_id) for entry_id in range(len(found))]
