"""Ending another process's session has the effect of a timeout, without waiting for it."""

from __future__ import annotations

import sys
from pathlib import Path

from bookie.embedded.process import ManagedProcess
from bookie.embedded.zookeeper import EmbeddedZooKeeper
from bookie.metadata.store.zookeeper import ZooKeeperStore
from tests.sessions import LONG_SESSION_S, expire, kill9, sessions_of

HOLDER = """
import sys
from kazoo.client import KazooClient
client = KazooClient(sys.argv[1], timeout=60)
client.add_listener(lambda state: print("state", state, flush=True))
client.start()
client.create(sys.argv[2], ephemeral=True, makepath=True)
print("ready", client.client_id[0], flush=True)
import time
while True:
    time.sleep(60)
"""


async def holder(zookeeper: EmbeddedZooKeeper, directory: Path, path: str) -> ManagedProcess:
    command = [sys.executable, "-c", HOLDER, zookeeper.connect_string, path]
    process = ManagedProcess.start("holder", command, log_path=directory / "holder.log")
    await process.wait_for_line(r"^ready", 60)
    return process


async def test_what_a_killed_process_held_is_free_at_once(
    zookeeper: EmbeddedZooKeeper, tmp_path: Path, fresh_root: str
) -> None:
    path = f"{fresh_root}/held"
    process = await holder(zookeeper, tmp_path, path)
    store = await ZooKeeperStore.connect(zookeeper.connect_string)
    try:
        assert len(await sessions_of(zookeeper, process)) == 1
        await kill9(zookeeper, process)
        assert not process.is_running
        assert await store.stat(path) is None
    finally:
        await store.close()


async def test_a_paused_process_finds_its_session_ended(
    zookeeper: EmbeddedZooKeeper, tmp_path: Path, fresh_root: str
) -> None:
    process = await holder(zookeeper, tmp_path, f"{fresh_root}/held")
    try:
        process.pause()
        await expire(zookeeper, process)
        process.resume()
        await process.wait_for_line(r"^state LOST", LONG_SESSION_S)
    finally:
        await process.stop()
