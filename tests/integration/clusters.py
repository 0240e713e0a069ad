"""Clusters for tests, with sessions that no stall of a loaded machine ends; ``tests.sessions`` ends them on request."""

from __future__ import annotations

from pathlib import Path

from bookie.client.connect import ConnectedBookKeeper, connect
from bookie.client.settings import ClientSettings
from bookie.embedded.cluster import EmbeddedBookie, EmbeddedCluster
from tests.deadlines import STATE_S
from tests.sessions import LONG_SESSION_S, kill9

LONG_TIMEOUTS = ClientSettings(add_timeout_s=LONG_SESSION_S, read_timeout_s=LONG_SESSION_S, close_timeout_s=STATE_S)
"""Timeouts with which a writer does not replace a stalled bookie, so that every bookie gets all entries."""


async def start_cluster(directory: Path, bookies: int, *, serves_metrics: bool = False) -> EmbeddedCluster:
    """Start a cluster. Its ZooKeeper answers without an fsync, because no test cuts its power."""
    return await EmbeddedCluster.start(
        directory,
        bookies=bookies,
        is_zookeeper_durable=False,
        serves_metrics=serves_metrics,
        session_timeout_s=LONG_SESSION_S,
    )


async def connected(cluster: EmbeddedCluster) -> ConnectedBookKeeper:
    """Return a client of the cluster, for use with ``async with``."""
    return await connect(cluster.metadata_uri, LONG_TIMEOUTS, session_timeout_s=LONG_SESSION_S)


async def kill_bookies(cluster: EmbeddedCluster, *bookies: EmbeddedBookie) -> None:
    """Kill bookies with SIGKILL, and return after their registrations have ended."""
    await kill9(cluster.zookeeper, *bookies)
