"""The creation of a client of a real cluster, with kazoo, gRPC and Apache's protocol."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from types import TracebackType

from bookie.client.bookkeeper import BookKeeper
from bookie.client.placement.feed import load_placement, make_placement_feed
from bookie.client.placement.placement import Placement
from bookie.client.ports import ClientPorts
from bookie.client.resolve import RegistrationResolver
from bookie.client.settings import ClientSettings
from bookie.metadata.bookies.registration import Registrations
from bookie.metadata.bookies.topology import topology_text
from bookie.metadata.cluster import Cluster, open_cluster
from bookie.metadata.ledgers.ledgers import LedgerStore
from bookie.metadata.logs.log_store import LogLists
from bookie.metadata.store.zookeeper import ZooKeeperStore
from bookie.metadata.tasks.parked import ParkedTasks
from bookie.metadata.tasks.underreplication import UnderReplication
from bookie.metadata.uri import parse_uri
from bookie.model.spread import DEFAULT_PLACEMENT_POLICY, PlacementPolicy
from bookie.model.topology import Location, location
from bookie.runtime.clock import SystemClock
from bookie.runtime.tasks import cancel, guarded
from bookie.wire.routing import open_transport
from bookie.wire.security import PLAINTEXT, BookieSecurity


class ConnectedBookKeeper(BookKeeper):
    """A client that owns its connections. Use it as an async context, or call ``close``."""

    def __init__(self, ports: ClientPorts, store: ZooKeeperStore, cluster: Cluster) -> None:
        super().__init__(ports)
        self.store = store
        self.cluster = cluster
        self.parked = ParkedTasks(store, cluster.root)
        self._feed: asyncio.Task[None] | None = None

    def follow_placement(self, *, is_from_file: bool) -> None:
        """Keep the placement up to date until the client is closed. Call it only once."""
        ports = self.ports
        feed = make_placement_feed(
            ports.placement, self.store, self.cluster, ports.transport, ports.clock, is_from_file=is_from_file
        )
        self._feed = guarded("placement feed", feed.run())

    async def close(self) -> None:
        """Close every connection. Idempotent."""
        await cancel(self._feed)
        try:
            await self.ports.transport.close()
        finally:
            await self.store.close()

    async def __aenter__(self) -> ConnectedBookKeeper:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def connect(
    metadata_uri: str,
    settings: ClientSettings | None = None,
    *,
    session_timeout_s: float = 10.0,
    security: BookieSecurity = PLAINTEXT,
    topology_file: Path | None = None,
    placement_policy: PlacementPolicy = DEFAULT_PLACEMENT_POLICY,
    where: str | None = None,
) -> ConnectedBookKeeper:
    """Connect to the cluster at ``metadata_uri`` (``zk+hierarchical://host:port/ledgers``).

    Args:
        metadata_uri: the metadata service URI of the cluster.
        settings: bounds and deadlines.
        session_timeout_s: timeout of the ZooKeeper session, in seconds.
        security: how to connect to bookies that use TLS or require a login; by default without both.
        topology_file: the racks of the bookies (``docs/placement.md``), read once; None to read them from ZooKeeper.
        placement_policy: how ensembles must be spread.
        where: this client's own location in the topology, such as ``/zone-1/rack-4``: nearer replicas are read first.

    Raises:
        InvalidLocationError: ``where`` is not a location.
        InvalidUriError: ``metadata_uri`` does not have this form.
        StoreUnavailableError: no ZooKeeper server answers.
        NotAClusterError: there is no BookKeeper cluster under the root in the URI.
        TlsFilesError: the TLS files of ``security`` cannot be read.
        InvalidTopologyError: the topology in the file cannot be read; with a strict policy also the one in ZooKeeper.
    """
    uri = parse_uri(metadata_uri)
    here = None if where is None else location(where)
    topology = topology_text(topology_file)
    store = await ZooKeeperStore.connect(uri.hosts, session_timeout_s=session_timeout_s)
    try:
        cluster = await open_cluster(store, uri)
        placement = await load_placement(store, cluster, topology, placement_policy)
        client = ConnectedBookKeeper(
            _ports(store, cluster, settings or ClientSettings(), security, placement, here), store, cluster
        )
        client.follow_placement(is_from_file=topology is not None)
        return client
    except BaseException:
        await store.close()
        raise


def _ports(
    store: ZooKeeperStore,
    cluster: Cluster,
    settings: ClientSettings,
    security: BookieSecurity,
    placement: Placement,
    here: Location | None,
) -> ClientPorts:
    clock, rng = SystemClock(), random.SystemRandom()
    registrations = Registrations(store, cluster)
    return ClientPorts(
        ledgers=LedgerStore(store, cluster, rng),
        registrations=registrations,
        tasks=UnderReplication(store, cluster, clock),
        transport=open_transport(RegistrationResolver(registrations, clock), security),
        clock=clock,
        rng=rng,
        settings=settings,
        placement=placement,
        near=None if here is None else (lambda bookie: placement.topology.distance_from(here, bookie)),
        logs=LogLists(store, cluster.root),
    )
