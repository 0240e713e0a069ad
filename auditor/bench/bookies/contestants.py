"""One Apache bookie, one bkheal bookie, and bkheal's client for the protocols of both.

The clients are the same program with the same load, so the comparison is between bookies only.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

from typing_extensions import override

from auditor.bench.versus_apache.settings import BOOKIE_HEAP_MIB, bookie_options
from bookie.client.bookkeeper import BookKeeper
from bookie.client.connect import connect
from bookie.embedded.apache import ApacheCluster
from bookie.embedded.apache_settings import ApacheStorage
from bookie.embedded.cluster import EmbeddedCluster
from bookie.embedded.process import ManagedProcess
from bookie.metadata.bookies.registration import Registrations
from bookie.model.ids import BookieId
from bookie.runtime.java import Java
from bookie.wire.apache.transport import ApacheTransport
from bookie.wire.resolver import APACHE_PROTOCOL, BookieAddress, Resolver

APACHE: Final = "apache"
OURS_GRPC: Final = "ours over gRPC"
OURS_APACHE: Final = "ours over Apache's protocol"


class ApacheEndpoints(Resolver):
    """Resolves a bookie to its address for Apache's protocol, even if it supports gRPC as well."""

    def __init__(self, registrations: Registrations) -> None:
        self._registrations = registrations

    @override
    async def resolve(self, bookie: BookieId) -> BookieAddress | None:
        info = await self._registrations.service_info(bookie)
        if info is None or (endpoint := info.endpoint(APACHE_PROTOCOL)) is None:
            return None
        # The incarnation is certain, because no other process takes the port during the benchmark.
        return BookieAddress(endpoint.host, endpoint.port, APACHE_PROTOCOL, info.incarnation)


class BookieServer(Protocol):
    """A bookie process that keeps its directories and its port across restarts."""

    directory: Path

    @property
    def running(self) -> ManagedProcess:
        """Return the last started process."""
        ...

    async def start(self) -> None:
        """Start and wait until ready."""
        ...

    async def stop(self) -> None:
        """Request its end, and wait for it."""
        ...


@dataclass(frozen=True, slots=True)
class Contestant:
    """A client of one protocol, and the only bookie of its cluster."""

    name: str
    client: BookKeeper
    server: BookieServer


@dataclass(frozen=True, slots=True)
class BookiePair:
    """Two clusters of one bookie each; ``theirs`` is None without Apache's jars."""

    ours: EmbeddedCluster
    theirs: ApacheCluster | None


@asynccontextmanager
async def running_bookies(
    directory: Path, java: Java, lib: Path | None, storage: ApacheStorage = ApacheStorage.SORTED
) -> AsyncIterator[BookiePair]:
    """Start both bookies below ``directory``, or only ours if ``lib`` is None.

    Raises:
        EmbeddedProcessError: a bookie did not start.
    """
    async with AsyncExitStack() as stack:
        theirs = None
        if lib is not None:
            theirs = await stack.enter_async_context(
                await ApacheCluster.start(
                    directory / "apache",
                    bookies=1,
                    options=replace(bookie_options(), storage=storage),
                    is_formatted_by_apache=False,
                    heap_mib=BOOKIE_HEAP_MIB,
                    java=java,
                    lib=lib,
                )
            )
        ours = await EmbeddedCluster.start(directory / "ours", bookies=1, java=java, speaks_apache=True)
        yield BookiePair(await stack.enter_async_context(ours), theirs)


@asynccontextmanager
async def contestants(bookies: BookiePair) -> AsyncIterator[list[Contestant]]:
    """Connect a client of each protocol."""
    async with AsyncExitStack() as stack:
        found = []
        if bookies.theirs is not None:
            to_theirs = await stack.enter_async_context(await connect(bookies.theirs.metadata_uri))
            found.append(Contestant(APACHE, to_theirs, bookies.theirs.bookies[0]))
        to_ours = await stack.enter_async_context(await connect(bookies.ours.metadata_uri))
        over_apache = ApacheTransport(ApacheEndpoints(to_ours.ports.registrations))
        stack.push_async_callback(over_apache.close)
        ours = bookies.ours.bookies[0]
        found.append(Contestant(OURS_GRPC, to_ours, ours))
        found.append(Contestant(OURS_APACHE, BookKeeper(replace(to_ours.ports, transport=over_apache)), ours))
        yield found
