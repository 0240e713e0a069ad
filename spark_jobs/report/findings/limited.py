"""Note in written findings that a limit kept a run from marking their ledgers. Needs no Spark."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bookie.model.ids import LedgerId
from spark_jobs.checks.findings import FindingKind

LIMITED: Final = "not marked by this run, which reached its limit (limit), unless it was marked before"
_NOT_MARKED: Final = pa.array([FindingKind.LOSS_ACCEPTED.value, FindingKind.UNREADABLE_METADATA.value])
"""The kinds of findings that no replicas check marks."""


def note_limit(folder: Path, rank: int, ledger_id: int, marked: AbstractSet[LedgerId] = frozenset()) -> None:
    """Add ``LIMITED`` to the detail of the findings of all ledgers from this one on, in the order of marking.

    Each file is replaced as a whole, and all findings of a ledger are in one file. A second call would add the text
    again.

    Args:
        folder: the table of findings of a replicas check.
        rank: the rank of the worst severity of the first ledger that was not marked.
        ledger_id: its id.
        marked: ledgers that the run marked although they come later in this order.

    Raises:
        OSError, pa.ArrowException: a file cannot be read or written.
    """
    except_for = pa.array(sorted(marked), pa.int64())
    for path in sorted(folder.glob("[!._]*")):
        table = pq.read_table(path, partitioning=None)
        noted = _noted(table, rank, ledger_id, except_for)
        if noted is None:
            continue
        temporary = path.with_name(f".{path.name}.tmp")
        pq.write_table(noted, temporary, compression="snappy")
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)  # Hadoop's checksum of the file
        temporary.replace(path)


def _noted(table: pa.Table, rank: int, ledger_id: int, except_for: pa.Array) -> pa.Table | None:
    """Return the table with the text; None: it has no such finding. Pure."""
    is_for_marking = pc.invert(pc.is_in(table["kind"], _NOT_MARKED))
    found = table.select(["ledger_id", "severity_rank"]).filter(is_for_marking)
    ranks = found.group_by("ledger_id").aggregate([("severity_rank", "min")])
    is_after = pc.or_(
        pc.greater(ranks["severity_rank_min"], rank),
        pc.and_(pc.equal(ranks["severity_rank_min"], rank), pc.greater_equal(ranks["ledger_id"], ledger_id)),
    )
    ids = ranks["ledger_id"].filter(pc.and_(is_after, pc.invert(pc.is_in(ranks["ledger_id"], except_for))))
    if not len(ids):
        return None
    is_limited = pc.and_(is_for_marking, pc.is_in(table["ledger_id"], ids.combine_chunks()))
    column = table.column_names.index("detail")
    details = table["detail"]
    has_detail = pc.fill_null(pc.not_equal(details, ""), False)
    limited = pc.if_else(has_detail, pc.binary_join_element_wise(details, LIMITED, "; "), LIMITED)
    return table.set_column(column, table.schema.field(column), pc.if_else(is_limited, limited, details))
