"""All bookies die at the same time during writes, as by a power failure or a failing disk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import psutil
import pytest

from bookie.client.connect import connect
from bookie.embedded.cluster import EmbeddedCluster
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import EntryId, LedgerId
from bookie.runtime.tasks import cancel
from tests.deadlines import STATE_S
from tests.integration.writer_child import WriterProcess, payload
from tests.sessions import LONG_SESSION_S, kill9

pytestmark = pytest.mark.integration

LEDGERS = 3
ENOUGH = 300
"""Acknowledged entries of each ledger before the bookies die: some batches of each."""
JOURNAL_BYTES = 1 << 20
"""Size of several hundred entries of each ledger; no other file of a bookie becomes as large during the test."""


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[EmbeddedCluster]:
    async with await EmbeddedCluster.start(
        tmp_path / "cluster", bookies=3, is_zookeeper_durable=False, session_timeout_s=LONG_SESSION_S
    ) as cluster:
        yield cluster


async def assert_all_readable(cluster: EmbeddedCluster, acknowledged: Mapping[LedgerId, Sequence[EntryId]]) -> None:
    """Restart every bookie, recover the ledgers, and read every acknowledged entry."""
    for bookie in cluster.bookies:
        bookie.launch()
    for bookie in cluster.bookies:
        await bookie.wait_ready()
    async with await connect(cluster.metadata_uri, session_timeout_s=LONG_SESSION_S) as client:
        for ledger_id, entries in acknowledged.items():
            assert entries == list(range(len(entries))), "the acknowledgements are not in order"
            reader = await client.open_ledger(ledger_id, recover=True)
            found = [entry.payload async for entry in reader.read_all()]
            assert len(found) >= len(entries)
            assert found == [payload(ledger_id, entry_id) for entry_id in range(len(found))]


async def test_every_acknowledged_entry_is_read_after_all_bookies_were_killed_at_once(
    cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    writer = WriterProcess(cluster.metadata_uri, tmp_path, ledgers=LEDGERS)

    async def is_under_load() -> bool:
        counts = [len(entries) for entries in writer.acknowledged().values()]
        return len(counts) == LEDGERS and min(counts) >= ENOUGH

    async with writer.process:
        await writer.process.wait_until(is_under_load, f"{ENOUGH} entries of each ledger", STATE_S)
        await kill9(cluster.zookeeper, *cluster.bookies)
    await assert_all_readable(cluster, writer.acknowledged())


async def test_entries_that_failing_disks_did_not_store_are_not_acknowledged(
    cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    for bookie in cluster.bookies:  # writes beyond this file size fail, first those to the journal
        psutil.Process(bookie.running.pid).rlimit(psutil.RLIMIT_FSIZE, (JOURNAL_BYTES, JOURNAL_BYTES))
    writer = WriterProcess(cluster.metadata_uri, tmp_path, ledgers=LEDGERS)
    async with writer.process:
        assert await writer.process.wait(STATE_S) == 0, writer.process.log_tail()
    acknowledged = writer.acknowledged()
    assert writer.ended().keys() == acknowledged.keys()
    exits = [asyncio.create_task(bookie.running.wait(STATE_S)) for bookie in cluster.bookies]
    done, _ = await asyncio.wait(exits, return_when=asyncio.FIRST_COMPLETED)
    assert ExitCode.STORAGE_FAILED in [one.result() for one in done]
    for one in exits:
        await cancel(one)
    for bookie in cluster.bookies:
        await bookie.stop()
    await assert_all_readable(cluster, acknowledged)
