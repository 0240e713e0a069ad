"""The disk of the only possible target is full before a copy is complete.

The disk is a small tmpfs, which root may mount. The test is skipped if it cannot be mounted.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bookie.embedded.process import ManagedProcess
from tests.deadlines import STATE_S
from tests.integration.auditors import when
from tests.integration.clusters import connected, start_cluster
from tests.integration.repair_world import RepairWorld
from tests.sessions import LONG_SESSION_S

pytestmark = [pytest.mark.integration, pytest.mark.long]

DISK_MIB = 24
ENTRIES = 1200
"""Number of entries with more bytes than the disk. The journal and the entry logs are both on it."""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 24 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(disk)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted: {mounted.stderr.strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


async def test_a_target_with_a_full_disk_is_not_added_and_the_next_one_gets_the_copy(
    small_disk: Path, tmp_path: Path
) -> None:
    async with await start_cluster(tmp_path / "cluster", 3) as cluster, await connected(cluster) as client:
        world = RepairWorld(cluster, client, tmp_path)
        ledger_id = await world.written(entries=ENTRIES)
        before = await world.metadata(ledger_id)
        places = ("--journal-dir", str(small_disk / "journal"), "--ledger-dir", str(small_disk / "ledgers"))
        words = [sys.executable, "-m", "bookie.server", "--metadata-uri", cluster.metadata_uri, *places]
        words += ["--host", "127.0.0.1", "--port", "0", "--session-timeout", str(LONG_SESSION_S)]
        small = ManagedProcess.start("small", [*words, "--read-only-below-bytes", "4000000"], log_path=tmp_path / "log")
        async with small:
            name = (await small.wait_for_line(r"^bookie (\S+) ready on", STATE_S))[1]
            lost = cluster.bookies[0]
            await world.kill9(lost)
            await world.mark(ledger_id, lost)
            replicator = world.replicator()

            async def is_read_only() -> bool:
                return name in (await client.ports.registrations.list()).read_only

            await when(is_read_only, STATE_S)
            assert small.is_running
            assert await world.metadata(ledger_id) == before
            [new] = await cluster.add_bookies(1)
            await world.settled()
            after = await world.metadata(ledger_id)
            assert (after.last_entry_id, after.length) == (before.last_entry_id, before.length)
            assert after.members() == before.members() - {lost.bookie_id} | {new.bookie_id}
            await world.assert_whole(ledger_id, entries=ENTRIES)
            assert await replicator.stop(STATE_S) == 0
            assert await small.stop(STATE_S) == 0
