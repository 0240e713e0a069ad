"""Clusters for tests: a stall of a loaded machine ends no session; ``tests.sessions`` ends those that have to end."""

from __future__ import annotations

from pathlib import Path

from bookie.client.connect import ConnectedBookKeeper, connect
from bookie.client.settings import ClientSettings
from bookie.embedded.cluster import EmbeddedBookie, EmbeddedCluster
from tests.deadlines import STATE_S
from tests.sessions import LONG_SESSION_S, kill9

PATIENT = ClientSettings(add_timeout_s=LONG_SESSION_S, read_timeout_s=LONG_SESSION_S, close_timeout_s=STATE_S)
"""A bookie that stands still for a while is not replaced, and lacks nothing in the end."""


async def start_cluster(directory: Path, bookies: int, *, serves_metrics: bool = False) -> EmbeddedCluster:
    """A cluster whose ZooKeeper answers without an fsync: no test takes the power away."""
    return await EmbeddedCluster.start(
        directory,
        bookies=bookies,
        is_zookeeper_durable=False,
        serves_metrics=serves_metrics,
        session_timeout_s=LONG_SESSION_S,
    )


async def connected(cluster: EmbeddedCluster) -> ConnectedBookKeeper:
    """A client of it; to be used with ``async with``."""
    return await connect(cluster.metadata_uri, PATIENT, session_timeout_s=LONG_SESSION_S)


async def kill_bookies(cluster: EmbeddedCluster, *bookies: EmbeddedBookie) -> None:
    """SIGKILL; when this returns the bookies are registered no more."""
    await kill9(cluster.zookeeper, *bookies)
