"""Findings of a run, in pages, from its table. Needs no Spark. The size of a page bounds the memory.

Rows are in the order of ``PageCursor``. This order is total for the findings of a run, so a page may end anywhere, and
the next one begins after its last row.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from bookie.model.ownership import OWNER_COLUMNS
from bookie.model.severity import Severity
from spark_jobs.report.files import FINDINGS, is_run_id
from spark_jobs.report.findings.filters import ANY, COLUMNS, FindingFilter, PageCursor, cursor_of
from spark_jobs.report.history import NoSuchReportError

_log = logging.getLogger(__name__)

_ORDER: Final = ("ledger_id", "fragment_index", "kind", "bookie")
_BATCH_ROWS: Final = 65_536
_READAHEAD: Final = 1
"""Number of batches of a file, and of files, that are read ahead. Arrow's defaults, 16 and 4, need more memory."""


@dataclass(frozen=True, slots=True)
class FindingPage:
    """A page of findings."""

    rows: list[dict[str, Any]]
    next_after: PageCursor | None
    """None: the last page."""


def read_findings(
    report_dir: Path, run_id: str, limit: int, wanted: FindingFilter = ANY, after: PageCursor | None = None
) -> FindingPage:
    """Return the first ``limit`` findings after the row of a cursor.

    The page is empty if the run has no findings, or was held by the brake.

    Raises:
        NoSuchReportError: there is no report of this run in the directory, or its table cannot be read.
    """
    directory = report_dir / run_id
    if not is_run_id(run_id) or not directory.is_dir():
        raise NoSuchReportError(f"there is no report of the run {run_id[:100]!r} here")
    if not (directory / FINDINGS).is_dir():
        return FindingPage([], None)
    kept: pa.Table | None = None
    try:
        table = ds.dataset(directory / FINDINGS, format="parquet")
        # Tables of earlier releases have no columns of owners.
        columns = [name for name in COLUMNS if name not in OWNER_COLUMNS or name in table.schema.names]
        batches = table.to_batches(
            columns=columns,
            batch_size=_BATCH_ROWS,
            filter=_filter(wanted, after),
            batch_readahead=_READAHEAD,
            fragment_readahead=_READAHEAD,
        )
        for batch in batches:
            if wanted.bookie is not None:
                batch = batch.filter(_lists_as_missing(batch, wanted.bookie))
            if not batch.num_rows:
                continue
            found = _placed(batch, after)
            joined = found if kept is None else pa.concat_tables([kept, found], promote_options="permissive")
            kept = joined.sort_by([(name, "ascending") for name in _ORDER]).slice(0, limit + 1).combine_chunks()
        rows = [] if kept is None else kept.to_pylist()
        page = rows[:limit]
        shown = [_row(row) for row in page]
    except (OSError, ValueError, KeyError, AttributeError, pa.ArrowException) as error:
        _log.warning("findings are unreadable", extra={"run_id": run_id, "reason": str(error)})
        raise NoSuchReportError(f"the findings of run {run_id} cannot be read") from error
    cursor = None
    if len(rows) > limit:
        cursor = cursor_of(shown[-1])
    return FindingPage(shown, cursor)


def _filter(wanted: FindingFilter, after: PageCursor | None) -> ds.Expression | None:
    parts: list[ds.Expression] = []
    if wanted.severity is not None:
        parts.append(ds.field("severity_rank") == wanted.severity.value)
    if wanted.ledger_id is not None:
        parts.append(ds.field("ledger_id") == wanted.ledger_id)
    if wanted.kind is not None:
        parts.append(ds.field("kind") == wanted.kind.value)
    if after is not None:
        ledger, kind = pc.coalesce(ds.field("ledger_id"), pc.scalar(-1)), ds.field("kind")
        index = pc.coalesce(ds.field("fragment_index"), pc.scalar(-1))
        is_later_kind = kind >= after.kind if after.bookie else kind > after.kind  # ``_placed`` compares bookies
        is_later = (index > after.fragment_index) | ((index == after.fragment_index) & is_later_kind)
        parts.append((ledger > after.ledger_id) | ((ledger == after.ledger_id) & is_later))
    whole: ds.Expression | None = None
    for part in parts:
        whole = part if whole is None else whole & part
    return whole


def _placed(batch: pa.RecordBatch, after: PageCursor | None) -> pa.Table:
    """Return the rows after ``after``, with sortable values: no nulls, and a bookie for a row without a ledger."""
    found = pa.Table.from_batches([batch])
    bookies = [""] * found.num_rows
    if found["ledger_id"].null_count:
        rows = zip(found["ledger_id"].to_pylist(), found["missing"].to_pylist(), strict=True)
        bookies = [missing[0] if ledger is None and missing else "" for ledger, missing in rows]
    for name in ("ledger_id", "fragment_index"):
        found = found.set_column(found.column_names.index(name), name, pc.fill_null(found[name], -1))
    found = found.append_column("bookie", pa.array(bookies, pa.string()))
    if after is None or not after.bookie:
        return found
    places = zip(*(found[name].to_pylist() for name in _ORDER), strict=True)
    return found.filter(pa.array([PageCursor(*place) > after for place in places], pa.bool_()))


def _lists_as_missing(batch: pa.RecordBatch, bookie: str) -> pa.Array:
    """Return whether each row's list of missing bookies contains ``bookie``."""
    lists = batch.column("missing")
    rows = pc.list_parent_indices(lists).filter(pc.equal(pc.list_flatten(lists), bookie))
    return pc.is_in(pa.array(range(batch.num_rows), rows.type), value_set=rows)


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    index, severity, ledger_id = row["fragment_index"], row["severity"], row["ledger_id"]
    return {
        **dict.fromkeys(COLUMNS),
        **{name: value for name, value in row.items() if name in COLUMNS},
        "kind": row["kind"].lower(),
        "ledger_id": None if ledger_id == -1 else ledger_id,
        "fragment_index": None if index == -1 else index,
        "state": row["state"].lower() if row["state"] else None,
        "missing": list(row["missing"] or ()),
        "severity": Severity.of_label(severity).label if severity else None,
    }
