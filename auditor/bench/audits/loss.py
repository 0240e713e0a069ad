"""The reaction to the loss of a bookie with the image of ledger metadata, compared with the reaction without it.

The cluster consists only of metadata: ledgers on twenty bookies, nine in ten with three copies and the others with two,
which are critical after the loss. A first audit writes the image and warms Spark up. Then a bookie's registration is
removed, and the loss is audited twice, each time without tasks and as if for the first time. Times are from the start
of the audit to ZooKeeper's confirmation of the mark. Before the loss, ``incremental`` measures audits after small
changes.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow.compute as pc
import pyarrow.parquet as pq

from auditor.bench.audits import incremental
from auditor.bench.audits.incremental import DifferentMarksError, LedgerChanges
from auditor.bench.versus_apache.audits import clear_tasks
from bookie.embedded.zookeeper import EmbeddedZooKeeper
from bookie.metadata.bookies.first_seen_down import FirstSeenDown
from bookie.metadata.cluster import Cluster, format_cluster, open_cluster
from bookie.metadata.layout import bookie_path, cookie_path
from bookie.metadata.ledgers.ledgers import LedgerStore
from bookie.metadata.nodes import create_with_parents
from bookie.metadata.port import ANY_VERSION, MetadataStore
from bookie.metadata.store.zookeeper import ZooKeeperStore
from bookie.metadata.tasks.underreplication import UnderReplication
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import Fragment, LedgerMetadata
from bookie.runtime.clock import SystemClock
from spark_jobs.report.files import TASKS
from spark_jobs.session import SessionSettings, spark_session
from spark_jobs.settings import AuditSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROOT: Final = "/ledgers"
_BOOKIES: Final = tuple(BookieId(f"bookie-{number}.example.org:3181") for number in range(20))
_LOST: Final = _BOOKIES[7]
_FILL_STEP: Final = 20_000
_CTIME_MS: Final = 1_700_000_000_000
_HEAP_MIB: Final = 512
_HEAP_MIB_PER_1000_LEDGERS: Final = 2.5
_SESSION_S: Final = 40.0


@dataclass(frozen=True, slots=True)
class _Reaction:
    first_mark_s: float
    last_mark_s: float
    """Seconds to the last of the marks by the image, if there are any."""
    end_s: float
    """Seconds to the end of the audit."""
    marks: int
    marks_by_image: int
    suspects: int


async def run(ledgers: int) -> dict[str, Any]:
    """Measure on an embedded ZooKeeper with ``ledgers`` ledgers.

    Raises:
        DifferentMarksError: the image changed the marks.
    """
    heap_mib = _HEAP_MIB + int(ledgers / 1000 * _HEAP_MIB_PER_1000_LEDGERS)
    with tempfile.TemporaryDirectory(prefix="bkheal-bench-") as directory:
        where = Path(directory)
        async with await EmbeddedZooKeeper.start(where / "zookeeper", heap_mib=heap_mib, is_durable=False) as server:
            hosts = server.connect_string
            return dict(await asyncio.to_thread(_measure_in_new_session, hosts, where / "reports", ledgers))


def _measure_in_new_session(hosts: str, report_dir: Path, ledgers: int) -> Mapping[str, Any]:
    with spark_session(SessionSettings()) as spark:
        return measure(spark, hosts, report_dir, ledgers)


def measure(spark: SparkSession, hosts: str, report_dir: Path, ledgers: int, root: str = _ROOT) -> Mapping[str, Any]:
    """Fill an empty root of a ZooKeeper, and measure.

    Raises:
        DifferentMarksError: see ``run``.
    """
    uri, rng = f"zk://{hosts}{root}", random.Random(3)
    with asyncio.Runner() as runner:
        store = runner.run(_connected(hosts))
        try:
            cluster = runner.run(_filled(store, root, ledgers))
            warm = _audit(spark, AuditSettings(uri, report_dir))
            image = report_dir / "image"
            size = sum(path.stat().st_size for path in image.rglob("*.parquet"))
            change = LedgerChanges(
                runner, LedgerStore(store, cluster, random.Random(2)), ledgers, lambda: _metadata(rng)
            )
            changed = incremental.measure(spark, AuditSettings(uri, report_dir), change, int(hosts.rpartition(":")[2]))
            runner.run(store.delete(bookie_path(root, _LOST, is_read_only=False), ANY_VERSION))
            without = _audit(spark, AuditSettings(uri, report_dir, with_image=False))
            marked = runner.run(_marks(store, cluster))
            runner.run(_restore_before_loss(store, cluster))
            with_image = _audit(spark, AuditSettings(uri, report_dir))
            if runner.run(_marks(store, cluster)) != marked or not with_image.marks_by_image:
                raise DifferentMarksError("with the image, other ledgers were marked, or none by it")
        finally:
            runner.run(store.close())
    return {
        "ledgers": ledgers,
        "suspects": with_image.suspects,
        "marks": len(marked),
        "image_mb": round(size / 1e6, 1),
        "audit_without_loss_s": round(warm.end_s, 2),
        **changed,
        "without_image_s": _figures(without),
        "with_image_s": _figures(with_image),
        "ratio_first_mark": round(without.first_mark_s / with_image.first_mark_s, 1),
        "ratio_last_mark": round(without.last_mark_s / with_image.last_mark_s, 2),
    }


def _figures(reaction: _Reaction) -> dict[str, float]:
    return {
        "first_mark": round(reaction.first_mark_s, 2),
        "last_mark": round(reaction.last_mark_s, 2),
        "end": round(reaction.end_s, 2),
    }


def _audit(spark: SparkSession, settings: AuditSettings) -> _Reaction:
    from spark_jobs.runs.run import run_audit

    clock = SystemClock()
    started_ms = clock.epoch_ms()
    result = run_audit(spark, settings)
    end_s = (clock.epoch_ms() - started_ms) / 1000
    image, log = result.summary.image, result.summary_path.parent / TASKS
    first_ms, last_ms = image.first_mark_ms, image.last_mark_ms
    if not image.marked and log.is_file():
        times = pc.min_max(pq.read_table(log, columns=["marked_at"])["marked_at"].cast("int64")).as_py()
        first_ms, last_ms = times["min"], times["max"]
    return _Reaction(
        max(1, first_ms - started_ms) / 1000,
        max(1, last_ms - started_ms) / 1000,
        end_s,
        result.summary.published.ledgers,
        image.marked,
        image.suspects,
    )


async def _connected(hosts: str) -> MetadataStore:
    return await ZooKeeperStore.connect(hosts, session_timeout_s=_SESSION_S)


async def _filled(store: MetadataStore, root: str, count: int) -> Cluster:
    """Format a cluster, and create its ledgers, cookies and registrations. The registrations end with the session."""
    rng = random.Random(1)
    await format_cluster(store, root, rng=rng)
    cluster = await open_cluster(store, root)
    for bookie in _BOOKIES:
        await create_with_parents(store, cookie_path(root, bookie), b"", root)
        await store.create(bookie_path(root, bookie, is_read_only=False), is_ephemeral=True)
    ledgers = LedgerStore(store, cluster, rng)
    for first in range(0, count, _FILL_STEP):
        numbers = range(first, min(count, first + _FILL_STEP))
        await ledgers.create_many([(LedgerId(number), _metadata(rng)) for number in numbers])
    return cluster


def _metadata(rng: random.Random) -> LedgerMetadata:
    """Return a closed ledger of one fragment; one in ten is open, and one in ten has two copies."""
    copies = 2 if rng.random() < 0.1 else 3
    fragments = (Fragment(EntryId(0), tuple(rng.sample(_BOOKIES, copies))),)
    metadata = LedgerMetadata(copies, copies, 2, fragments, ctime_ms=_CTIME_MS + rng.randrange(10**10))
    if rng.random() < 0.1:
        return metadata
    return metadata.closed(EntryId(rng.randrange(1_000, 50_000)), rng.randrange(1 << 30))


async def _marks(store: MetadataStore, cluster: Cluster) -> dict[int, tuple[str, ...]]:
    tasks = await UnderReplication(store, cluster, SystemClock()).list()
    return {task.ledger_id: tuple(sorted(task.missing)) for task in tasks}


async def _restore_before_loss(store: MetadataStore, cluster: Cluster) -> None:
    """Restore the state before the audit of the loss."""
    await clear_tasks(store, cluster)
    down = FirstSeenDown(store, cluster.root)
    await down.reopen(_LOST, (await down.read())[_LOST].since_ms)
