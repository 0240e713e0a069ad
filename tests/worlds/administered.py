"""One bookie on disks in memory, served on a loopback port with its administration, in a separate thread."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bookie.metadata.bookies.drains import Drains
from bookie.model.ids import BookieId
from bookie.runtime.access.access import Access
from bookie.runtime.access.tokens import Role, make_token
from bookie.runtime.clock import SystemClock
from bookie.runtime.loop_thread import LoopThread
from bookie.server.administration.node import ServingBookie
from bookie.server.administration.servicer import AdministrationServicer
from bookie.server.grpc.server import GrpcServer
from bookie.server.metrics import bookie_metrics
from bookie.server.service import BookieIdentity
from bookie.server.settings import AdministrationAccess
from bookie.server.upkeep.collector import Collector, CollectorSettings
from bookie.server.upkeep.disk_watch import DiskWatch, ReadOnlyReason
from bookie.server.upkeep.drain_watch import DrainWatch
from bookie.server.upkeep.operator_read_only import OperatorReadOnly, read_recorded_request
from bookie.server.upkeep.registration_keeper import RegistrationKeeper, service_info
from bookie.server.upkeep.scrubber import Scrubber
from bookie.wire.grpc.administration import Administration
from bookie.wire.resolver import BookieAddress
from bookie.wire.security import PLAINTEXT, TlsSettings
from tests.worlds.cluster import MemoryCluster, open_bookie

US = BookieId("us:3181")
OPERATE, READ = make_token("olga", Role.OPERATE), make_token("rita", Role.READ)


@dataclass
class Administered:
    """A bookie with its administration. ``thread`` runs everything; a test calls from its own thread."""

    thread: LoopThread
    cluster: MemoryCluster
    node: ServingBookie
    servicer: AdministrationServicer
    port: int

    @property
    def at(self) -> str:
        return f"127.0.0.1:{self.port}"

    def client(self, token: str | None = OPERATE.token) -> Administration:
        return Administration(BookieAddress("127.0.0.1", self.port), PLAINTEXT, token)

    def stop(self) -> None:
        self.thread.stop()


async def open_administered(
    home: Path, access: AdministrationAccess, port: int, unsent_bytes: Callable[[], int] = lambda: 0
) -> tuple[MemoryCluster, AdministrationServicer, ServingBookie, RegistrationKeeper]:
    """Open a registered bookie with its administration, without a server. The caller must stop the keeper."""
    clock, rng = SystemClock(), random.Random(1)
    cluster = await MemoryCluster(clock).found()
    bookie = await open_bookie(clock)
    servicer = AdministrationServicer(Access(access, clock))
    info = service_info("127.0.0.1", port, "uuid")
    keeper = RegistrationKeeper(cluster.store, cluster.registrations, US, info, clock, takeover_deadline_s=5)
    await keeper.start(is_read_only=False)
    drain = DrainWatch(Drains(cluster.store, cluster.cluster.root), US, clock)
    read_only = OperatorReadOnly(bookie.ledgers, await read_recorded_request(bookie.ledgers))
    disks = {"journal": bookie.journal, "ledgers": bookie.ledgers}
    watch = DiskWatch(
        tuple(disks.values()),
        bookie.storage,
        bookie.service,
        keeper,
        clock,
        read_only_below_bytes=0,
        requests={
            ReadOnlyReason.OPERATOR: lambda: read_only.wish is not None,
            ReadOnlyReason.DRAIN: lambda: drain.is_drained,
        },
    )
    pace = CollectorSettings(interval_s=0, confirm_after_s=0)
    collector = Collector(cluster.store, cluster.cluster, bookie.storage, US, clock, rng, pace)
    scrubber = Scrubber(
        bookie.storage,
        bookie.ledgers,
        US,
        bookie_metrics("1"),
        clock,
        interval_s=3600,
        bytes_per_s=1e9,
        service=bookie.service,
    )
    node = ServingBookie(
        bookie=US,
        identity=BookieIdentity("uuid", "1"),
        storage=bookie.storage,
        service=bookie.service,
        disks=disks,
        watch=watch,
        drain=drain,
        read_only=read_only,
        collector=collector,
        scrubber=scrubber,
        unsent_bytes=unsent_bytes,
        clock=clock,
        journal_paths={"journal": home / "journal"},
        begun_s=clock.monotonic_s(),
    )
    servicer.node = node
    return cluster, servicer, node, keeper


@contextmanager
def administered(
    home: Path,
    *,
    allow_anonymous_read: bool = True,
    allow_anonymous_write: bool = False,
    tls: TlsSettings | None = None,
) -> Iterator[Administered]:
    """Serve a bookie with the tokens ``OPERATE`` and ``READ``. It scrubs and collects only on request."""
    tokens = home / "tokens"
    tokens.write_text(f"{OPERATE.line}\n{READ.line}\n")
    thread = LoopThread()
    access = AdministrationAccess(tokens, allow_anonymous_read, allow_anonymous_write, requests_per_second=10_000)

    async def start() -> tuple[Administered, GrpcServer]:
        server = GrpcServer(concurrent_requests_max=100)
        port = server.bind("127.0.0.1", 0, tls)
        cluster, servicer, node, _ = await open_administered(home, access, port, lambda: server.unsent_bytes)
        await server.start(node.service, servicer)
        return Administered(thread, cluster, node, servicer, port), server

    made, server = thread.run(start())

    async def end() -> None:
        await server.stop()
        await made.node.storage.abort()
        await made.cluster.close()

    try:
        yield made
    finally:
        thread.run(end())
        thread.stop()
