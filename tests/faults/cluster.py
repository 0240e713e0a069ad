"""A cluster with links, small disks, and bookies that verify their entries and collect every few seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from typing_extensions import override

from bookie.embedded.apache import ApacheCluster
from bookie.embedded.apache_settings import ApacheOptions
from bookie.embedded.cluster import LEDGERS_ROOT, EmbeddedBookie, EmbeddedCluster
from bookie.embedded.zookeeper import EmbeddedZooKeeper
from tests.faults.disks import Disks
from tests.faults.network import LINK_HOST, Network

_SCRUBS: Final = ("--scrub-interval", "15", "--scrub-bytes-per-second", str(32 << 20))
"""Every damaged entry is found within seconds."""
_COLLECTIONS: Final = ("--collect-interval", "40")
_SMALL_DISKS_EVERY: Final = 2
"""Every second bookie has small disks."""
_READ_ONLY_BELOW: Final = ("--read-only-below-bytes", str(24 << 20))


class FaultyCluster(EmbeddedCluster):
    """A cluster with a network of links, whose bookies verify their entries, and collect, every few seconds."""

    def __init__(self, directory: Path, zookeeper: EmbeddedZooKeeper, **options: Any) -> None:
        """Store the arguments; see ``EmbeddedCluster``."""
        super().__init__(directory, zookeeper, **options)
        self.network = Network(zookeeper.port)
        self.disks = Disks()

    async def uri_for(self, name: str) -> str:
        """Return the metadata service URI of a process, which has a link of its own to ZooKeeper."""
        return f"zk+hierarchical://{await self.network.to_zookeeper(name)}{LEDGERS_ROOT}"

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
                options=(*_SCRUBS, *_COLLECTIONS, *_READ_ONLY_BELOW, "--advertised-host", LINK_HOST),
            )
            self.bookies.append(bookie)
            added.append(bookie)
            if len(self.bookies) % _SMALL_DISKS_EVERY == 0 and not self.disks.problem:
                self.disks.mount(name, bookie.directory)
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
    """Start Apache's bookies, each with a link of its own to ZooKeeper."""
    for _ in range(count):
        uri = await cluster.uri_for(f"apache-{len(apache.bookies) + 1}")
        await apache.add_bookies(1, options=options, extra={"metadataServiceUri": uri})
