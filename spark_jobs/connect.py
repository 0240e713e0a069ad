"""The only module of this package that opens connections: ZooKeeper for the driver and each partition of a scan."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final

from bookie.metadata.access import ZooKeeperAccess, set_current_access
from bookie.metadata.cluster import Cluster, NotAClusterError, open_cluster
from bookie.metadata.port import MetadataStore, StoreUnavailableError
from bookie.metadata.runs.readers import Readers
from bookie.metadata.runs.records import Runs
from bookie.metadata.store.zookeeper import ZooKeeperStore
from bookie.metadata.uri import MetadataUri, parse_uri
from bookie.runtime.clock import Clock, SystemClock
from spark_jobs.pacing.budget import TaskBudget
from spark_jobs.pacing.feedback import CHUNKS_IN_FLIGHT
from spark_jobs.pacing.pace import Pace
from spark_jobs.pacing.paced_store import PacedStore
from spark_jobs.pacing.sharing import Sharing, join
from spark_jobs.settings import CONNECT_TIMEOUT_S

_log = logging.getLogger(__name__)

OBSERVER_TIMEOUT_S: Final = 5.0
"""How long each task tries to connect to observers before it uses the servers of the URI."""


@dataclass(frozen=True, slots=True)
class Connection:
    """An open store and the cluster in it."""

    store: MetadataStore
    cluster: Cluster


@dataclass(frozen=True, slots=True)
class PacedConnection:
    """A store that keeps the pace of a task, and the cluster in it."""

    store: PacedStore
    cluster: Cluster


@asynccontextmanager
async def connected(
    uri: MetadataUri, connect_timeout_s: float = CONNECT_TIMEOUT_S, access: ZooKeeperAccess | None = None
) -> AsyncIterator[Connection]:
    """Connect and read the cluster's root; the connection is closed at the end.

    Tasks pass the ``access`` of the driver. It names files and environment variables of the executor. This process uses
    it from then on, so a task looks for bkheal's own state in the same place as the driver.

    Raises:
        StoreUnavailableError: no answer from the hosts.
        NotAClusterError: there is no cluster at the root, or its layout differs from the URI's.
    """
    if access is not None:
        set_current_access(access)
    store = await ZooKeeperStore.connect(uri.hosts, connect_timeout_s=connect_timeout_s, access=access)
    try:
        yield Connection(store, await open_cluster(store, uri))
    finally:
        await store.close()


@asynccontextmanager
async def connected_at_pace(
    uri: MetadataUri,
    connect_timeout_s: float,
    access: ZooKeeperAccess,
    budget: TaskBudget,
    *,
    measures_itself: bool = False,
) -> AsyncIterator[PacedConnection]:
    """Connect a task that reads in bulk: to observers, if the budget names some and one of them answers.

    Args:
        uri: the metadata URI of the cluster.
        connect_timeout_s: how long to try.
        access: see ``connected``.
        budget: the limits of the task.
        measures_itself: see ``PacedStore``.

    Raises:
        StoreUnavailableError, NotAClusterError: see ``connected``; or the observers serve another cluster (R131).
    """
    async with AsyncExitStack() as stack:
        connection = None
        if budget.observers:
            reading = replace(uri, hosts=budget.observers)
            try:
                opening = connected(reading, min(connect_timeout_s, OBSERVER_TIMEOUT_S), access)
                connection = await stack.enter_async_context(opening)
                _check_same(connection.cluster, budget)
            except StoreUnavailableError as error:
                _log.warning(f"no observer answers, so ledgers are read from the servers of the metadata URI: {error}")
        if connection is None:
            connection = await stack.enter_async_context(connected(uri, connect_timeout_s, access))
        sharing = None
        if budget.run_id:
            sharing = Sharing(Readers(connection.store, budget.run_id), budget.run_id, budget.readers)
        pace = Pace(SystemClock(), budget, 1 if measures_itself else CHUNKS_IN_FLIGHT)
        store = PacedStore(connection.store, pace, connection.cluster.root, sharing, measures_itself=measures_itself)
        yield PacedConnection(store, connection.cluster)


@asynccontextmanager
async def connected_as_reader(
    uri: MetadataUri, connect_timeout_s: float, clock: Clock, budget: TaskBudget
) -> AsyncIterator[PacedConnection]:
    """Connect the driver of a run, which becomes one of the runs that share the limits on reading.

    The driver's reads keep the pace of the run. The driver and its tasks read in bulk at different times, so the driver
    may use the limits of all tasks together. If there are fixed limits and other runs, this takes up to two seconds.

    Args:
        uri: the metadata URI of the cluster.
        connect_timeout_s: how long to try.
        clock: for waits and measurements.
        budget: the limits of all tasks of the run together.

    Raises:
        StoreUnavailableError, NotAClusterError: see ``connected``.
    """
    async with connected(uri, connect_timeout_s) as connection:
        readers = Readers(connection.store, budget.run_id)
        sharing = await join(readers, budget.run_id, clock, has_rates=budget.has_rates)
        pace = Pace(clock, replace(budget, readers=sharing.count), 1)
        store = PacedStore(connection.store, pace, connection.cluster.root, sharing, measures_itself=True)
        yield PacedConnection(store, connection.cluster)


def _check_same(cluster: Cluster, budget: TaskBudget) -> None:
    if budget.instance_id and cluster.instance_id != budget.instance_id:
        raise NotAClusterError(
            f"the servers {budget.observers} have the cluster {cluster.instance_id or '(without an id)'}, and the "
            f"metadata URI names {budget.instance_id}: correct metadata_observers"
        )


@asynccontextmanager
async def opened_runs(metadata_uri: str) -> AsyncIterator[Runs]:
    """Connect to the cluster, and disconnect at the end.

    Raises:
        StoreUnavailableError: no answer from the hosts.
        NotAClusterError: there is no cluster at the root.
    """
    async with connected(parse_uri(metadata_uri)) as connection:
        yield Runs(connection.store, connection.cluster.root)
