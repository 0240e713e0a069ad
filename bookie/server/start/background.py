"""The background work of a serving bookie, its metrics, and its view for operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bookie.metadata.ledgers.ledgers import LedgerStore
from bookie.runtime.telemetry.metrics import MetricSet
from bookie.runtime.version import installed_version
from bookie.server import metrics as names
from bookie.server.administration.node import ServingBookie
from bookie.server.collection_figures import record_collection
from bookie.server.grpc.server import GrpcServer
from bookie.server.joining.admission import AdmittedBookie
from bookie.server.metrics import Sampler
from bookie.server.service import BookieIdentity, BookieService
from bookie.server.settings import BookieSettings
from bookie.server.start.context import Context, Metadata
from bookie.server.upkeep.collector import Collector, CollectorSettings
from bookie.server.upkeep.damage_repair import DamageRepair
from bookie.server.upkeep.disk_watch import DiskWatch, ReadOnlyReason
from bookie.server.upkeep.drain_watch import DrainWatch
from bookie.server.upkeep.operator_read_only import OperatorReadOnly
from bookie.server.upkeep.registration_keeper import RegistrationKeeper
from bookie.server.upkeep.scrubber import Scrubber
from bookie.storage.port import Disk
from bookie.storage.store import LedgerStorage


@dataclass(frozen=True, slots=True)
class RegisteredBookie:
    """A bookie that serves and is registered, for its upkeep."""

    admission: AdmittedBookie
    disks: Mapping[str, Disk]
    """Each journal, and the ledger directories as one disk (``ledgers``)."""
    storage: LedgerStorage
    service: BookieService
    keeper: RegistrationKeeper
    drain: DrainWatch
    read_only: OperatorReadOnly


@dataclass(frozen=True, slots=True)
class BackgroundWork:
    """The background work that operators can see or start."""

    watch: DiskWatch
    scrubber: Scrubber | None
    collector: Collector


def register_gauges(metrics: MetricSet, bookie: RegisteredBookie, server: GrpcServer) -> None:
    """Register metrics from plain attributes, read during a scrape."""
    storage, service, keeper = bookie.storage, bookie.service, bookie.keeper
    metrics.watch(names.OUT_OF_USE, lambda: storage.directories_out_of_use)
    metrics.watch(names.LEDGERS, lambda: storage.ledger_count)
    metrics.watch(names.REGISTERED, lambda: keeper.is_registered)
    metrics.watch(names.WRITABLE, lambda: keeper.is_registered and not service.is_read_only)
    metrics.watch(names.DAMAGED, lambda: service.damaged.count)
    metrics.watch(names.ADDS_WAITING, lambda: service.load.add_bytes)
    metrics.watch(names.READS_RUNNING, lambda: service.load.reads_running)
    metrics.watch(names.READS_WAITING, lambda: service.load.reads_waiting)
    metrics.watch(names.JOURNAL_WAITING, lambda: storage.memory.journal_bytes)
    metrics.watch(names.WRITE_CACHE, lambda: storage.memory.cache_bytes)
    metrics.watch(names.UNSENT, lambda: server.unsent_bytes)


def start_upkeep(context: Context, metadata: Metadata, bookie: RegisteredBookie) -> BackgroundWork:
    """Start the background work: samples, watches of disks and drains, scrubs, the garbage collector."""
    settings, clock = context.settings, context.clock
    admission, disks, storage, service = bookie.admission, bookie.disks, bookie.storage, bookie.service
    drain, read_only = bookie.drain, bookie.read_only
    sampler = Sampler(context.metrics, disks, storage, clock, polls_refused=lambda: service.polls_refused)
    context.start_background_task("metrics sampler", sampler.run())
    watch = DiskWatch(
        tuple(disks.values()),
        storage,
        service,
        bookie.keeper,
        clock,
        read_only_below_bytes=settings.read_only_below_bytes,
        requests={
            ReadOnlyReason.OPERATOR: lambda: read_only.wish is not None,
            ReadOnlyReason.DRAIN: lambda: drain.is_drained,
        },
        journal_paths=settings.journal_dirs,
        ledger_path=settings.ledger_dirs[0],
    )
    context.start_background_task("disk watch", watch.run())
    context.start_background_task("drain watch", drain.run(watch.check))
    scrubber = None
    if settings.scrub_interval_s > 0:
        ledger_store = LedgerStore(metadata.store, metadata.cluster, context.rng)
        repair = DamageRepair(ledger_store, service, admission.bookie_id, admission.incarnation)
        scrubber = Scrubber(
            storage,
            disks["ledgers"],
            admission.bookie_id,
            context.metrics,
            clock,
            interval_s=settings.scrub_interval_s,
            bytes_per_s=settings.scrub_bytes_per_second,
            repair=repair.repair,
            service=service,
        )
        context.start_background_task("scrubber", scrubber.run())
    collector = Collector(
        metadata.store,
        metadata.cluster,
        storage,
        admission.bookie_id,
        clock,
        context.rng,
        _collector_settings(settings),
    )
    context.start_background_task("collector", collector.run(partial(record_collection, context.metrics)))
    return BackgroundWork(watch, scrubber, collector)


def _collector_settings(settings: BookieSettings) -> CollectorSettings:
    # Longer than any session timeout that a server grants: otherwise a stale server could answer the second check.
    confirm_after_s = settings.takeover_deadline_s
    return CollectorSettings(settings.collect_interval_s, confirm_after_s, ratio_max=settings.collect_ratio_max)


def administered(
    context: Context,
    server: GrpcServer,
    bookie: RegisteredBookie,
    upkeep: BackgroundWork,
    journal_paths: Mapping[str, Path],
    begun_s: float,
) -> ServingBookie:
    """Return the bookie as the administration sees it."""
    return ServingBookie(
        bookie=bookie.admission.bookie_id,
        identity=BookieIdentity(bookie.admission.incarnation, installed_version()),
        storage=bookie.storage,
        service=bookie.service,
        disks=bookie.disks,
        watch=upkeep.watch,
        drain=bookie.drain,
        read_only=bookie.read_only,
        collector=upkeep.collector,
        scrubber=upkeep.scrubber,
        unsent_bytes=lambda: server.unsent_bytes,
        clock=context.clock,
        journal_paths=journal_paths,
        begun_s=begun_s,
    )
