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

from bookie.model.impact import effect_of, is_unrecoverable, standing_of
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
_KEY: Final = (*OWNER_COLUMNS, "severity_rank", "is_closed", "is_last_fragment", "missing_count", *_NUMBERS[1:])


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
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        _log.warning("findings are unreadable", extra={"run_id": run_id, "reason": str(error)})
        raise NoSuchReportError(f"the findings of run {run_id} cannot be read") from error
    return groups.rows(), groups.unnamed, groups.is_cut


class _Groups:
    """Collects findings, batch by batch, into rows of topics."""

    def __init__(self) -> None:
        self._rows: dict[tuple[Any, ...], list[int]] = {}
        """Number of ledgers, bytes and lowest ledger id of each row."""
        self._last: tuple[int, frozenset[tuple[Any, ...]]] = (-1, frozenset())
        """The ledger at the end of the last batch, and the rows that count it. The next batch may begin with the same
        ledger."""
        self.unnamed = 0
        self.is_cut = False

    def add(self, found: pa.Table) -> None:
        is_closed = pc.equal(found["state"], LedgerState.CLOSED.name)
        found = found.append_column("is_closed", pc.fill_null(is_closed, False))
        found = found.set_column(
            found.column_names.index("is_last_fragment"),
            "is_last_fragment",
            pc.fill_null(found["is_last_fragment"], False),
        )
        found = found.append_column("missing_count", pc.list_value_length(found["missing_positions"]))
        column = found.column_names.index("bytes_estimate")
        found = found.set_column(column, "bytes_estimate", found["bytes_estimate"].cast(_SIZE))
        counted: set[tuple[Any, ...]] = set()
        last = found["ledger_id"][-1].as_py()
        per_ledger = found.group_by([*_KEY, "ledger_id"], use_threads=False).aggregate([("bytes_estimate", "sum")])
        sums = per_ledger.group_by(list(_KEY), use_threads=False).aggregate(
            [("ledger_id", "list"), ("bytes_estimate_sum", "sum")]
        )
        merged: dict[tuple[Any, ...], tuple[set[int], int]] = {}
        for group in sums.to_pylist():
            row = _row_key(group)
            ledgers, size = merged.get(row, (set(), 0))
            ledgers.update(group["ledger_id_list"])
            merged[row] = ledgers, size + int(group["bytes_estimate_sum_sum"] or 0)
        for row, (ledgers, size) in merged.items():
            is_known = self._last[0] in ledgers and row in self._last[1]
            if last in ledgers:
                counted.add(row)
            self._count(row, len(ledgers) - is_known, size, min(ledgers))
        if last == self._last[0]:
            counted |= self._last[1]
        self._last = last, frozenset(counted)

    def _count(self, row: tuple[Any, ...], ledgers: int, size: int, first: int) -> None:
        if row == _UNNAMED:
            self.unnamed += ledgers
        elif row in self._rows:
            known = self._rows[row]
            self._rows[row] = [known[0] + ledgers, known[1] + size, min(known[2], first)]
        elif len(self._rows) < _ROWS_MAX:
            self._rows[row] = [ledgers, size, first]
        else:
            self.is_cut = True

    def rows(self) -> list[ImpactRow]:
        return [ImpactRow(*row, *counts) for row, counts in self._rows.items()]


_UNNAMED: Final = ()
_COMPONENTS: Final = {component.value: component for component in Component}


def _row_key(group: dict[str, Any]) -> tuple[Any, ...]:
    """Return the key fields of an ``ImpactRow``; ``_UNNAMED`` for findings without a topic."""
    if group["topic"] is None or group["severity_rank"] is None:
        return _UNNAMED
    severity = Severity(group["severity_rank"])
    component = _COMPONENTS.get(group["component"], Component.UNKNOWN)
    numbers = group["copies_min"], group["missing_count"], group["write_quorum"], group["ack_quorum"]
    is_end_unknown = None not in numbers and is_unrecoverable(
        is_open_end=group["is_last_fragment"] and not group["is_closed"],
        copies_min=numbers[0],
        missing_positions=numbers[1],
        write_quorum=numbers[2],
        ack_quorum=numbers[3],
    )
    role = system_role(group["namespace"], group["topic"])
    return (
        severity,
        standing_of(severity, is_end_unknown=is_end_unknown),
        effect_of(component, role, is_closed=group["is_closed"]),
        *(group[name] for name in OWNER_COLUMNS),
    )
