"""The impact of a run, from its table of findings. Needs no Spark.

The table is read in batches, which Arrow groups. A million findings take a second, and need the memory of one batch and
of a bounded number of groups. The findings of one ledger follow each other in the table.

Findings of an accepted loss are left out, as in all counts by severity, and so are the other kinds in
``_EXCLUDED_FINDING_KINDS``.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bookie.model.impact import Standing, effect_of, is_unrecoverable, standing_of
from bookie.model.metadata import LedgerState
from bookie.model.metadata_faults import MetadataFault
from bookie.model.ownership import OWNER_COLUMNS, Component, partitioned_name, system_role
from bookie.model.severity import Severity
from spark_jobs.checks.findings import FindingKind
from spark_jobs.report.files import FINDINGS, is_run_id
from spark_jobs.report.history import NoSuchReportError
from spark_jobs.report.impact import Impact, ImpactRow, impact_of

_log = logging.getLogger(__name__)

_BATCH_ROWS: Final = 65_536
_ROWS_MAX: Final = 200_000
"""Largest number of rows of topics in memory: about 200 MB. The impact of a run with more rows is marked as cut."""
_EXCLUDED_FINDING_KINDS: Final = pa.array(
    [
        kind.value
        for kind in (
            FindingKind.LOSS_ACCEPTED,
            FindingKind.UNKNOWN_PLACE,
            FindingKind.UNREFERENCED_LEDGER,
            FindingKind.UNDECODABLE_REFERENCES,
            FindingKind.UNREAD_REFERENCE,
            FindingKind.OVER_REPLICATED_LEDGER,
            FindingKind.UNOWNED_LEDGER,
            FindingKind.KNOWN_DAMAGE,
            FindingKind.DANGLING_COOKIE,
            *(FindingKind(fault.label) for fault in MetadataFault),
        )
    ]
)
_NUMBERS: Final = ("severity_rank", "copies_min", "write_quorum", "ack_quorum")
_COLUMNS: Final = (
    *("kind", "ledger_id", "state", "is_last_fragment", "missing_positions", "bytes_estimate"),
    *(*_NUMBERS, *OWNER_COLUMNS),
)
_SIZE: Final = pa.decimal128(38, 0)
"""The type of sums of bytes. With damaged lengths of ledgers, a sum may need more than 64 bits."""
_KEY: Final = ("severity_rank", "standing", "is_closed", *OWNER_COLUMNS)
_COUNTS: Final = ("ledger_id_count", "ledger_id_min", "bytes_estimate_sum")


@dataclass(frozen=True, slots=True)
class ImpactFilter:
    """A selection of rows; None in a field selects all."""

    severity: Severity | None = None
    namespace: str | None = None
    """Name with the tenant."""
    topic: str | None = None
    """Full name of the topic. Without a partition number, it selects all partitions."""

    def has(self, row: ImpactRow) -> bool:
        """Return whether a row is selected."""
        return (
            (self.severity is None or row.severity is self.severity)
            and (self.namespace is None or row.namespace == self.namespace)
            and (self.topic is None or self.topic in (row.topic, partitioned_name(row.topic)))
        )


@dataclass(frozen=True, slots=True)
class ImpactPage:
    """The worst rows of a selection."""

    rows: tuple[ImpactRow, ...]
    total: int
    """Number of selected rows."""
    unnamed_ledgers: int
    """Number of ledgers of the whole run with findings and without a topic."""
    is_cut: bool

    def to_json(self) -> dict[str, Any]:
        """Return the page as plain values."""
        return {
            "items": [row.to_json() for row in self.rows],
            "total": self.total,
            "unnamed_ledgers": self.unnamed_ledgers,
            "cut": self.is_cut,
        }


def read_impact(report_dir: Path, run_id: str) -> Impact:
    """Return the impact of a run; empty if the run has no table of findings, or is of an earlier release.

    Raises:
        NoSuchReportError: there is no report of this run in the directory, or its table cannot be read.
    """
    rows, unnamed, is_cut = _read(report_dir, run_id)
    return impact_of(rows, unnamed, is_cut=is_cut)


def read_impact_page(report_dir: Path, run_id: str, limit: int, wanted: ImpactFilter = ImpactFilter()) -> ImpactPage:
    """Return the worst selected rows of topics.

    Raises:
        NoSuchReportError: there is no report of this run in the directory, or its table cannot be read.
    """
    rows, unnamed, is_cut = _read(report_dir, run_id)
    found = sorted((row for row in rows if wanted.has(row)), key=lambda row: row.order)
    return ImpactPage(tuple(found[:limit]), len(found), unnamed, is_cut)


def _read(report_dir: Path, run_id: str) -> tuple[list[ImpactRow], int, bool]:
    directory = report_dir / run_id
    if not is_run_id(run_id) or not directory.is_dir():
        raise NoSuchReportError(f"there is no report of the run {run_id[:100]!r} here")
    if not (directory / FINDINGS).is_dir():
        return [], 0, False
    groups = _Groups()
    try:
        for path in sorted((directory / FINDINGS).glob("[!._]*")):
            with pq.ParquetFile(path) as file:
                if not set(OWNER_COLUMNS) <= set(file.schema_arrow.names):
                    return [], 0, False
                for batch in file.iter_batches(_BATCH_ROWS, columns=list(_COLUMNS)):
                    found = batch.filter(pc.invert(pc.is_in(batch["kind"], _EXCLUDED_FINDING_KINDS)))
                    if found.num_rows:
                        groups.add(pa.Table.from_batches([found]))
        return groups.rows(), groups.unnamed, groups.is_cut
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        _log.warning("findings are unreadable", extra={"run_id": run_id, "reason": str(error)})
        raise NoSuchReportError(f"the findings of run {run_id} cannot be read") from error


class _Groups:
    """Adds findings, batch by batch, up to rows of topics.

    Arrow groups the findings, and Python sees each row of topics once. Otherwise the cost of a finding would depend on
    the number of topics.
    """

    def __init__(self) -> None:
        self._parts: list[pa.Table] = []
        """Sums with the columns ``_KEY`` and ``_COUNTS``. A key may be in several parts."""
        self._rows = 0
        """Number of rows of these parts."""
        self._begun: pa.Table | None = None
        """The findings of the last ledger, which may go on in the next batch."""
        self.unnamed = 0
        self.is_cut = False

    def add(self, found: pa.Table) -> None:
        """Add findings to the sums, except those of the last ledger."""
        found = _keyed(found)
        if self._begun is not None:
            found = pa.concat_tables([self._begun, found])
        ledgers = found["ledger_id"]
        is_last = pc.equal(ledgers, ledgers[-1])
        self._begun = found.filter(is_last)
        self._add(found.filter(pc.invert(is_last)))

    def rows(self) -> list[ImpactRow]:
        """Add the findings of the last ledger, and return all rows.

        Raises:
            ValueError: a severity is not known.
        """
        if self._begun is not None:
            self._add(self._begun)
            self._begun = None
        self._merge()
        counted: dict[tuple[Any, ...], list[int]] = {}
        for part in self._parts:
            for row in part.to_pylist():
                # A ledger is in one of the rows that are merged here: they differ in its state or its component.
                known = counted.setdefault(_row_key(row), [0, 0, row["ledger_id_min"]])
                known[0] += row["ledger_id_count"]
                known[1] += int(row["bytes_estimate_sum"] or 0)
                known[2] = min(known[2], row["ledger_id_min"])
        return [ImpactRow(*key, *counts) for key, counts in counted.items()]

    def _add(self, found: pa.Table) -> None:
        is_named = pc.and_(pc.is_valid(found["topic"]), pc.is_valid(found["severity_rank"]))
        self.unnamed += pc.count_distinct(found["ledger_id"].filter(pc.invert(is_named))).as_py()
        named = found.filter(is_named)
        if not named.num_rows:
            return
        per_ledger = named.group_by([*_KEY, "ledger_id"], use_threads=False).aggregate([("bytes_estimate", "sum")])
        sums = per_ledger.rename_columns([*_KEY, "ledger_id", "bytes_estimate"])
        sums = sums.group_by(list(_KEY), use_threads=False).aggregate(
            [("ledger_id", "count"), ("ledger_id", "min"), ("bytes_estimate", "sum")]
        )
        self._parts.append(sums.select([*_KEY, *_COUNTS]))
        self._rows += sums.num_rows
        if self._rows > 2 * _ROWS_MAX:
            self._merge()

    def _merge(self) -> None:
        """Merge the parts into one with at most ``_ROWS_MAX`` rows, those that were found first."""
        if not self._parts:
            return
        merged = pa.concat_tables(self._parts).group_by(list(_KEY), use_threads=False)
        sums = merged.aggregate([("ledger_id_count", "sum"), ("ledger_id_min", "min"), ("bytes_estimate_sum", "sum")])
        sums = sums.select([*_KEY, "ledger_id_count_sum", "ledger_id_min_min", "bytes_estimate_sum_sum"])
        self.is_cut = self.is_cut or sums.num_rows > _ROWS_MAX
        self._parts = [sums.rename_columns([*_KEY, *_COUNTS]).slice(0, _ROWS_MAX)]
        self._rows = self._parts[0].num_rows


def _keyed(found: pa.Table) -> pa.Table:
    """Return the columns ``_KEY``, ``ledger_id`` and ``bytes_estimate`` of findings."""
    is_closed = pc.fill_null(pc.equal(found["state"], LedgerState.CLOSED.name), False)
    columns = {name: found[name] for name in (*OWNER_COLUMNS, "severity_rank", "ledger_id")}
    columns |= {
        "is_closed": is_closed,
        "standing": _standings(found, is_closed),
        "bytes_estimate": found["bytes_estimate"].cast(_SIZE),
    }
    return pa.table(columns).select([*_KEY, "ledger_id", "bytes_estimate"])


def _standings(found: pa.Table, is_closed: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the standing of each finding. Few findings differ in the values that decide it."""
    is_open_end = pc.and_(pc.fill_null(found["is_last_fragment"], False), pc.invert(is_closed))
    numbers = [*(found[name] for name in _NUMBERS), pc.list_value_length(found["missing_positions"])]
    texts = [pc.fill_null(column.cast(pa.int64()).cast(pa.string()), "") for column in (is_open_end, *numbers)]
    encoded = pc.binary_join_element_wise(*texts, ",").combine_chunks().dictionary_encode()
    chunks = encoded.chunks if isinstance(encoded, pa.ChunkedArray) else [encoded]
    return pa.chunked_array(
        [
            pc.take(pa.array([_standing(text) for text in each.dictionary.to_pylist()], pa.string()), each.indices)
            for each in chunks
        ],
        pa.string(),
    )


def _standing(text: str) -> str | None:
    """Return the value of the standing of findings with these numbers; None if their severity is missing."""
    is_open_end, rank, *others = (int(number) if number else None for number in text.split(","))
    if rank is None:
        return None
    copies_min, write_quorum, ack_quorum, missing = others
    is_end_unknown = (
        copies_min is not None
        and write_quorum is not None
        and ack_quorum is not None
        and missing is not None
        and is_unrecoverable(
            is_open_end=bool(is_open_end),
            copies_min=copies_min,
            missing_positions=missing,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
        )
    )
    return standing_of(Severity(rank), is_end_unknown=is_end_unknown).value


_COMPONENTS: Final = {component.value: component for component in Component}


def _row_key(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return the key fields of an ``ImpactRow``."""
    component = _COMPONENTS.get(row["component"], Component.UNKNOWN)
    role = system_role(row["namespace"], row["topic"])
    return (
        Severity(row["severity_rank"]),
        Standing(row["standing"]),
        effect_of(component, role, is_closed=row["is_closed"]),
        *(row[name] for name in OWNER_COLUMNS),
    )
