"""One pass over all ledger metadata, which the Spark driver runs to find the ledgers for further checks."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import StorageLevel
from pyspark.core.broadcast import Broadcast
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the name that every Spark user knows)

from bookie.metadata.access import ZooKeeperAccessError, current_access
from bookie.metadata.port import AccessDeniedError, StoreUnavailableError
from bookie.metadata.uri import parse_uri
from bookie.model.ids import LEDGER_ID_MAX
from bookie.runtime.version import installed_version
from spark_jobs.datasource.ledger_schema import ledger_ddl
from spark_jobs.datasource.ledgers import LedgerTasks
from spark_jobs.datasource.options import LedgerOptions
from spark_jobs.datasource.partitions import LeafParent, balance, parents_text, partition_count
from spark_jobs.datasource.task_rows import READING, READING_DDL
from spark_jobs.image.folder import ImageFolder
from spark_jobs.image.part import ImageFile
from spark_jobs.pacing.budget import Budget, TaskBudget
from spark_jobs.runs.reading.completeness import ScanTotals
from spark_jobs.runs.releasing import unpersist
from spark_jobs.runs.slots import session_slots
from spark_jobs.runs.spark_failures import READ_AGAIN, spark_failure
from spark_jobs.settings import AuditSettings
from spark_jobs.snapshot.errors import SnapshotError

SUSPECTS_PER_PARTITION: Final = 50_000
Tasks = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""A function that runs one Spark task."""
LEDGERS_PER_TASK: Final = 25_000
"""Size of a task if the number of executors has no limit: about a second of reading, so that new executors find
work."""


@dataclass(frozen=True, slots=True)
class ImageParts:
    """The parts of an image that the valid readings wrote."""

    files: tuple[ImageFile, ...] = ()
    problems: tuple[str, ...] = ()
    """Why some files are missing."""
    carried_problems: tuple[str, ...] = ()
    """Why rows of an older image could not be carried over; their ledgers were read."""


@dataclass(frozen=True, slots=True)
class LedgerScan:
    """The result of a pass. Call ``release`` when ``suspects`` is no longer needed."""

    suspects: DataFrame
    """Rows of ``bk_ledgers``: all ledgers, or unreadable ledgers and those on a bookie that is not live.

    If Spark lost one of its blocks and read it again, an action on it fails (``MetadataReadAgainError``): the rows
    would not match the totals, and would be newer than the list of bookies that they are compared with (R2).
    """
    totals: ScanTotals
    cached: tuple[DataFrame, ...]
    image: ImageParts = field(default_factory=ImageParts)
    settled: DataFrame | None = None
    """Rows of ``bk_ledgers`` from a snapshot that were not confirmed by a second reading. The suspects do not contain
    them. None: there are none, or they were not requested.
    """
    sent: tuple[Broadcast[Sequence[str]], ...] = ()
    """Values that Spark sent to the executors for the tasks."""

    def release(self) -> None:
        """Free all memory that Spark uses for the scan."""
        unpersist(*self.cached)
        for each in self.sent:
            with suppress(Py4JError, OSError):  # ignored for the same reason as in ``unpersist``
                each.destroy()


def scan_ledgers(
    spark: SparkSession,
    settings: AuditSettings,
    plan: Sequence[LeafParent],
    live: AbstractSet[str] | None,
    ids: tuple[int, int] = (0, LEDGER_ID_MAX),
    image: ImageFolder | None = None,
    image_from_ms: int = 0,
    image_unsettled: Sequence[int] | None = (),
    *,
    budget: Budget | None = None,
    is_brief: bool = False,
) -> LedgerScan:
    """Read every ledger under ``plan`` once; all of them are read before this returns.

    Args:
        spark: the session.
        settings: the settings of the run.
        plan: the nodes to read.
        live: ledgers that name only these bookies are counted by the reader and not returned; None: all are returned.
        ids: lowest and highest ledger id to read; the others count as skipped.
        image: folder for the parts of an image, shared by all executors; None: no image is written.
        image_from_ms: when this reading began, for the image, epoch milliseconds.
        image_unsettled: ledgers that count as not settled in the image; None: all ledgers.
        budget: the limits of all tasks of the run; None: those of the settings.
        is_brief: rows have only the columns of ``BRIEF_DDL``, and no image is written.

    Raises:
        StoreUnavailableError: the metadata store did not answer, not even after retries.
        AccessDeniedError: it does not allow reading.
        ZooKeeperAccessError: an executor lacks the files for access, or ZooKeeper does not accept them.
        ExecutorEnvironmentError: an executor lacks the package or a dependency.
        ScanFailedError: Spark failed.
    """
    budget = settings.budget if budget is None else budget
    slots = session_slots(spark)
    tasks = slots.tasks(sum(parent.planned for parent in plan), LEDGERS_PER_TASK)
    partitions = budget.tasks(settings.num_partitions or partition_count(plan, tasks))
    groups = balance(plan, partitions)
    options = replace(
        task_options(settings, live, budget.share(len(groups), slots.most)),
        first_ledger=ids[0],
        last_ledger=ids[1],
        is_brief=is_brief,
        image_dir=None if image is None else image.to_text(),
        image_from_ms=image_from_ms,
        image_unsettled=image_unsettled,
    )
    texts = [parents_text(group) for group in groups]
    return scan_groups(spark, settings, texts, lambda sent: LedgerTasks(options, sent), is_brief=is_brief)


def scan_groups(
    spark: SparkSession,
    settings: AuditSettings,
    groups: Sequence[str],
    tasks: Callable[[Broadcast[Sequence[str]]], Tasks],
    *,
    is_brief: bool = False,
) -> LedgerScan:
    """Read groups of nodes in one task each; all ledgers are read before this returns.

    Args:
        spark: the session.
        settings: the settings of the run.
        groups: the groups, as texts. Each executor receives all texts once, and a task decodes only its own.
        tasks: makes the function for the tasks from the sent texts. Its input are indexes into ``groups``, and its
            output are rows of ``bk_ledgers`` with a summary and the number of the reading.
        is_brief: whether the rows have only the columns of ``BRIEF_DDL``.

    Raises:
        StoreUnavailableError, AccessDeniedError, ZooKeeperAccessError, ScanFailedError: see ``scan_ledgers``.
    """
    numbers = spark.range(0, len(groups), 1, max(1, len(groups)))
    columns = ledger_ddl(is_summarized=True, is_brief=is_brief)
    sent = spark.sparkContext.broadcast(groups)
    read = numbers.mapInArrow(tasks(sent), f"{columns}, {READING_DDL}")
    try:
        return replace(scan_of(collected(read, settings)), sent=(sent,))
    except BaseException:
        with suppress(Py4JError, OSError):  # Spark itself may have failed
            sent.destroy()
        raise


def task_options(settings: AuditSettings, live: AbstractSet[str] | None, budget: TaskBudget) -> LedgerOptions:
    """Return the options of tasks that read ledgers for an audit.

    Args:
        settings: the settings of the run.
        live: ledgers that name only these bookies are only counted; None: all are returned.
        budget: the limits of each task.
    """
    return LedgerOptions(
        uri=parse_uri(settings.metadata_uri),
        access=current_access(),
        connect_timeout_s=settings.connect_timeout_s,
        # A name with a comma is not a bookie id (docs/formats.md#registration).
        live_bookies=None if live is None else frozenset(bookie for bookie in live if "," not in bookie),
        is_summarized=True,
        budget=budget,
        driver_version=installed_version(),
    )


@dataclass(frozen=True, slots=True)
class Collected:
    """Rows with a column ``summary``, kept by Spark."""

    cached: DataFrame
    totals: ScanTotals
    """The sum of the summaries."""
    readings: tuple[int, ...]
    """The numbers of the readings of the rows; empty if the rows have none."""
    image: ImageParts = field(default_factory=ImageParts)


def scan_of(collected: Collected) -> LedgerScan:
    """Return the scan for rows of ``bk_ledgers`` with a summary and the number of their reading."""
    cached, totals = collected.cached, collected.totals
    suspects = restricted_to_readings(cached, collected.readings)
    suspects = suspects.where(F.col("summary").isNull()).drop("summary", READING)
    # A single partition needs no later shuffle, which would take most of the time if there are few suspects.
    return LedgerScan(
        suspects.coalesce(1 + totals.returned // SUSPECTS_PER_PARTITION), totals, (cached,), collected.image
    )


def collected(read: DataFrame, settings: AuditSettings) -> Collected:
    """Read rows with a column ``summary``, let Spark keep them, and add up the summaries.

    After an error or a stop, Spark keeps none of the rows.

    Raises:
        SnapshotError: an executor cannot use the snapshot.
        StoreUnavailableError, AccessDeniedError, ZooKeeperAccessError, ScanFailedError: see ``scan_ledgers``.
    """
    try:
        return _collected(read.persist(StorageLevel.MEMORY_AND_DISK), settings.metadata_uri)
    except BaseException:
        unpersist(read)
        raise


def _collected(cached: DataFrame, uri: str) -> Collected:
    try:
        number = [READING] if READING in cached.columns else []
        summaries = cached.where(F.col("summary").isNotNull()).select(*number, "summary.*").collect()
    except PySparkException as error:
        refused = store_error(error)
        if isinstance(refused, SnapshotError):
            raise SnapshotError(f"{refused}; nothing was marked") from error
        if isinstance(refused, AccessDeniedError | ZooKeeperAccessError):
            raise type(refused)(f"ledgers could not be read from {uri}: {refused}; nothing was marked") from error
        if refused is not None:
            raise StoreUnavailableError(
                f"the metadata store did not answer while ledgers were read from {uri}; nothing was marked. "
                "Run the audit again once it answers"
            ) from error
        raise spark_failure(error, f"reading the ledgers of {uri}") from error
    readings = tuple(row[READING] for row in summaries if number)
    return Collected(cached, _totals(summaries), readings, _image(summaries))


def restricted_to_readings(rows: DataFrame, readings: Sequence[int]) -> DataFrame:
    """Return the same rows. An action on them fails if a row comes from a reading other than these."""
    is_same = F.when(F.col(READING).isin(*readings), F.lit(True))
    return rows.where(is_same.otherwise(F.raise_error(F.lit(READ_AGAIN)).cast("boolean")))


def _image(summaries: Sequence[Row]) -> ImageParts:
    parts = [summary["image"] for summary in summaries if summary["image"] is not None]
    files = (ImageFile(**file.asDict()) for part in parts for file in part["files"])
    carried = tuple(summary["carried_problem"] for summary in summaries if summary["carried_problem"])
    return ImageParts(tuple(files), tuple(part["problem"] for part in parts if part["problem"]), carried)


def _totals(summaries: Iterable[Row]) -> ScanTotals:
    counts: defaultdict[str, int] = defaultdict(int)
    listed: defaultdict[str, tuple[int, ...]] = defaultdict(tuple)
    ledgers: defaultdict[str, int] = defaultdict(int)
    fragments: defaultdict[str, int] = defaultdict(int)
    read = ("ledgers", "fragments", "unreadable", "vanished", "skipped", "returned", "carried")
    names = (*read, *("open", "in_recovery", "closed"))
    for summary in summaries:
        for name in names:
            counts[name] += summary[name]
        for parent in summary["parents"]:
            listed[parent["path"]] += (parent["listed"],)
        for bookie in summary["bookies"]:
            ledgers[bookie["bookie_id"]] += bookie["ledgers"]
            fragments[bookie["bookie_id"]] += bookie["fragments"]
    return ScanTotals(
        **{name: counts[name] for name in names},
        listed=dict(listed),
        ledgers_by_bookie=dict(ledgers),
        fragments_by_bookie=dict(fragments),
    )


StoreError = AccessDeniedError | StoreUnavailableError | ZooKeeperAccessError | SnapshotError
_KINDS: Final[Mapping[str, type[StoreError]]] = {
    kind.__name__: kind for kind in (AccessDeniedError, StoreUnavailableError, ZooKeeperAccessError, SnapshotError)
}
_RAISED: Final = re.compile(rf"\s*(?:[\w.]+\.)?({'|'.join(_KINDS)}): (.*)")


def store_error(error: Exception) -> StoreError | None:
    """Return the error of the store or of a snapshot in a worker's traceback; None: there is another error.

    A traceback names errors in quoted source lines and in earlier errors, so a name somewhere in it proves nothing. The
    last line of the form ``Name: text`` is the proof.
    """
    raised = [found for line in str(error).splitlines() if (found := _RAISED.fullmatch(line))]
    return _KINDS[raised[-1][1]](raised[-1][2].strip()) if raised else None
