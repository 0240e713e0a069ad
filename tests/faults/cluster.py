"""A cluster with links, small disks, and bookies that verify their entries and collect every few seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Final, cast

from typing_extensions import override

from bookie.embedded.apache import ApacheCluster
from bookie.embedded.apache_settings import ApacheOptions
from bookie.embedded.cluster import LEDGERS_ROOT, EmbeddedBookie, EmbeddedCluster, format_new_cluster
from bookie.embedded.zookeeper import EmbeddedZooKeeper
from tests.ensemble import Ensemble, prepared_ensemble
from tests.faults.disks import Directories, Disks
from tests.faults.network import APACHE_HOST, Network, hosts_file
from tests.links import LINK_HOST

_SCRUBS: Final = ("--scrub-interval", "15", "--scrub-bytes-per-second", str(32 << 20))
"""Every damaged entry is found within seconds."""
_COLLECTIONS: Final = ("--collect-interval", "40")
_SMALL_DISKS_EVERY: Final = 2
"""Every second bookie has small disks."""
_READ_ONLY_BELOW: Final = ("--read-only-below-bytes", str(24 << 20))
_SYNC_TICKS: Final = 5
"""ZooKeeper's usual setting: a leader that stands still is replaced after ten seconds."""


class FaultyCluster(EmbeddedCluster):
    """A cluster with a network of links, whose bookies verify their entries, and collect, every few seconds."""

    def __init__(
        self, directory: Path, ensemble: Ensemble, network: Network, *, directories: int, speaks_apache: bool
    ) -> None:
        """Store the arguments; see ``started``."""
        # A cluster uses only the address of its server, and stops it at the end.
        super().__init__(directory, cast(EmbeddedZooKeeper, ensemble), speaks_apache=speaks_apache)
        self.ensemble = ensemble
        self.network = network
        self.disks = Disks()
        self._directories = directories

    @classmethod
    async def started(
        cls, directory: Path, *, bookies: int, zookeeper_servers: int, directories: int, speaks_apache: bool
    ) -> FaultyCluster:
        """Start ZooKeeper and our bookies.

        Args:
            directory: for all files.
            bookies: the number of our bookies.
            zookeeper_servers: the number of ZooKeeper servers.
            directories: the number of journals, and of ledger directories, of each of our bookies.
            speaks_apache: whether our bookies speak Apache's protocol as well.
        """
        network = Network()
        ensemble = await prepared_ensemble(
            directory, servers=zookeeper_servers, sync_ticks=_SYNC_TICKS, link=network.between_servers
        )
        network.set_zookeeper([server.port for server in ensemble.servers])
        cluster = cls(directory, ensemble, network, directories=directories, speaks_apache=speaks_apache)
        try:
            await ensemble.start()
            await format_new_cluster(ensemble.connect_string)
            await cluster.add_bookies(bookies)
        except BaseException:
            await cluster.stop()
            raise
        return cluster

    async def uri_for(self, name: str) -> str:
        """Return the metadata service URI of a process, which has links of its own to ZooKeeper."""
        return f"zk+hierarchical://{await self.network.to_zookeeper(name)}{LEDGERS_ROOT}"

    @property
    def has_several_directories(self) -> bool:
        """Whether each of our bookies has several journals and several ledger directories."""
        return self._directories > 1

    def directories_of(self, bookie: EmbeddedBookie) -> Directories:
        """Return the directories of one of our bookies."""
        return Directories.below(bookie.directory, self._directories)

    @override
    async def add_bookies(self, count: int) -> Sequence[EmbeddedBookie]:
        added = []
        for _ in range(count):
            name = f"bookie-{len(self.bookies) + 1}"
            bookie = EmbeddedBookie(
                name,
                self.directory / name,
                "",
                speaks_apache=self.speaks_apache,
                session_timeout_s=self.session_timeout_s,
            )
            directories = self.directories_of(bookie)
            bookie.options = (*_SCRUBS, *_COLLECTIONS, *_READ_ONLY_BELOW, *directories.options)
            bookie.options += ("--advertised-host", LINK_HOST)
            self.bookies.append(bookie)
            added.append(bookie)
            if len(self.bookies) % _SMALL_DISKS_EVERY == 0 and not self.disks.problem:
                self.disks.mount(name, directories)
            bookie.metadata_uri = await self.uri_for(name)
            bookie.launch()
        for bookie in added:
            await bookie.wait_ready()
            await self.link(bookie)
        return added

    async def link(self, bookie: EmbeddedBookie) -> None:
        """Make the links to a bookie after its first start."""
        ports = [bookie.port, *([bookie.apache_port] if self.speaks_apache else [])]
        await self.network.to_bookie(bookie.name, *ports)

    @override
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await super().__aexit__(kind, error, trace)
        await asyncio.to_thread(self.disks.close, are_kept=kind is not None)

    @override
    async def stop(self) -> None:
        await super().stop()
        await self.network.close()


async def add_apache_bookies(
    cluster: FaultyCluster, apache: ApacheCluster, count: int, options: ApacheOptions | None = None
) -> None:
    """Start Apache's bookies, each with links of its own to ZooKeeper and a link in front of it."""
    hosts = cluster.directory / "hosts"
    hosts.write_text(hosts_file())
    jvm = replace(apache.jvm, options=(*apache.jvm.options, f"-Djdk.net.hosts.file={hosts}"))
    linked = replace(apache, jvm=jvm)
    for _ in range(count):
        name = f"apache-{len(apache.bookies) + 1}"
        extra = {"metadataServiceUri": await cluster.uri_for(name), "advertisedAddress": APACHE_HOST}
        try:
            await linked.add_bookies(1, options=options, extra=extra)
        finally:
            await cluster.network.to_apache_bookie(name, apache.bookies[-1].port)
