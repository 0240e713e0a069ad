"""The parts of a report computed by Spark: the table of findings, its sums, and the order of marking."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (the name that every Spark user knows)

from bookie.metadata.bookies.marking_times import HoldReason, MarkingTimes
from bookie.model.ids import BookieId, LedgerId
from bookie.model.severity import Severity
from bookie.model.times import rfc3339
from spark_jobs.checks.sql_text import in_list, literal
from spark_jobs.report.counts import FindingSums, SeverityCount, WorstLedger
from spark_jobs.report.findings.limited import LIMITED
from spark_jobs.runs.marking.held_back import HeldBookies, LedgerWithFindings

_LEDGER: Final = (
    "ledger_id",
    "array_min(found.severity_rank) AS severity_rank",
    # Most ledgers have one finding, whose bookies are distinct already.
    "sort_array(IF(size(found) > 1, array_distinct(flatten(found.missing)), found[0].missing)) AS missing",
    "CAST(size(found) AS bigint) AS fragments",
    """aggregate(found, CAST(0 AS double),
                 (size, finding) -> size + CAST(coalesce(finding.bytes_estimate, 0) AS double)) AS bytes_estimate""",
    "found",
)
# The worst severity of most ledgers is below critical, so their findings need no comparison.
_CRITICAL_MISSING: Final = f"""
    IF(severity_rank > {Severity.CRITICAL.value}, CAST(array() AS array<string>),
       array_distinct(flatten(transform(
           filter(found, finding -> finding.severity_rank = {Severity.CRITICAL.value}), finding -> finding.missing))))
"""
_PACKED: Final = "packed binary"


def _sum_row_sql(severity_rank: str, bookie_id: str, ledgers: int, fragments: int, size: str) -> str:
    return (
        f"named_struct('severity_rank', CAST({severity_rank} AS int), 'bookie_id', CAST({bookie_id} AS string), "
        f"'ledgers', {ledgers}L, 'fragments', {fragments}L, 'bytes', CAST({size} AS double))"
    )


# What one ledger adds to the sums: one ledger at its worst severity, its fragments at their severities, and both to
# each of its missing bookies.
_FACTS: Final = f"""
    inline(concat(
        array({_sum_row_sql("severity_rank", "NULL", 1, 0, "0")}),
        transform(found, f -> {_sum_row_sql("f.severity_rank", "NULL", 0, 1, "coalesce(f.bytes_estimate, 0)")}),
        transform(missing, bookie -> {_sum_row_sql("NULL", "bookie", 1, 0, "0")}),
        transform(flatten(found.missing), bookie -> {_sum_row_sql("NULL", "bookie", 0, 1, "0")})))
"""


def write_findings(
    ledgers: DataFrame, others: DataFrame, folder: str, run_id: str, held: HeldBookies | None = None
) -> None:
    """Add findings to a folder of a Hadoop file system, with the run's id as first column.

    Args:
        ledgers: ``ledgers_found``.
        others: findings of any other kind.
        folder: the URI of the folder.
        run_id: id of the run.
        held: the held-back bookies. If nothing is marked for a finding, its detail contains the reason.
    """
    if held is not None and (held.times or held.limit_from is not None):
        found = ledgers.selectExpr(
            f"{_CRITICAL_MISSING} AS critical_missing", "severity_rank AS ledger_rank", "inline(found)"
        )
        if held.limit_from is not None:
            found = found.withColumn("detail", F.expr(_limited_detail_sql(ledgers, held.limit_from)))
        if held.times:
            found = found.withColumn("detail", F.expr(_held_back(held)))
        found = found.drop("critical_missing", "ledger_rank")
    else:
        found = ledgers.selectExpr("inline(found)")
    named = found.unionByName(others).select(F.lit(run_id).alias("run_id"), "*")
    named.write.mode("append").parquet(folder)


def _limited_detail_sql(ledgers: DataFrame, first: LedgerId) -> str:
    """Return the SQL of the detail. All findings from ``first`` on, in the order of ``to_mark``, get the reason.

    If there is no finding for ``first``, it is a returned accepted loss, and all findings come after it.
    """
    ranks = [row["severity_rank"] for row in ledgers.where(f"ledger_id = {first}").select("severity_rank").collect()]
    is_after = f"ledger_rank > {ranks[0]} OR (ledger_rank = {ranks[0]} AND ledger_id >= {first})" if ranks else "true"
    return f"CASE WHEN {is_after} THEN concat_ws('; ', detail, {literal(LIMITED)}) ELSE detail END"


def _held_back(held: HeldBookies) -> str:
    """Return the SQL of the detail: the reason that ends last.

    It applies if every missing bookie is held, and none of them is critical and due.
    """
    ends = " ".join(
        f"WHEN {literal(bookie)} THEN named_struct('due_ms', {time.due_ms}L, 'text', {literal(_text(time))})"
        for bookie, time in held.times.items()
    )
    is_held = in_list("bookie", sorted(held.times))
    is_named = f"array_contains(critical_missing, bookie) AND {in_list('bookie', sorted(held.critical_due))}"
    return f"""
        CASE WHEN size(missing) > 0 AND forall(missing, bookie -> {is_held} AND NOT ({is_named}))
             THEN array_max(transform(missing, bookie -> CASE bookie {ends} END)).text
             ELSE detail END
    """


def _text(time: MarkingTimes) -> str:
    why = "" if time.reason is HoldReason.DELAY else f" ({time.reason.value}{f': {time.detail}' * bool(time.detail)})"
    return f"waiting until {rfc3339(time.due_ms)}{why}"


def ledgers_found(findings: DataFrame) -> DataFrame:
    """Return one row per ledger in findings of missing bookies: worst severity, missing bookies, and its findings."""
    return ledgers_judged(findings.groupBy("ledger_id").agg(F.expr("collect_list(struct(*)) AS found")))


def ledgers_judged(found: DataFrame) -> DataFrame:
    """Return what ``ledgers_found`` returns, from rows with a ``ledger_id`` and its findings (``found``)."""
    return found.selectExpr(*_LEDGER)


def finding_sums(ledgers: DataFrame) -> FindingSums:
    """Sum ``ledgers_found`` by severity and by bookie, in one pass."""
    groups = ledgers.selectExpr(_FACTS).groupBy("severity_rank", "bookie_id")
    rows = groups.agg(*[F.expr(f"sum({name}) AS {name}") for name in ("ledgers", "fragments", "bytes")]).collect()
    by_severity = sorted((row for row in rows if row["bookie_id"] is None), key=lambda row: row["severity_rank"])
    return FindingSums(
        tuple(
            SeverityCount(Severity(row["severity_rank"]), row["ledgers"], row["fragments"], int(row["bytes"]))
            for row in by_severity
        ),
        {row["bookie_id"]: (row["ledgers"], row["fragments"]) for row in rows if row["bookie_id"] is not None},
    )


def accepted_counts(accepted: DataFrame) -> tuple[int, int]:
    """Count the ledgers and the fragments in findings with an accepted loss."""
    (row,) = accepted.selectExpr("count(DISTINCT ledger_id) AS ledgers", "count(*) AS fragments").collect()
    return row["ledgers"], row["fragments"]


def worst_ledgers(ledgers: DataFrame, count: int) -> tuple[WorstLedger, ...]:
    """Return the ``count`` worst ledgers of ``ledgers_found``: by severity, then by bytes."""
    order = ledgers.orderBy("severity_rank", F.desc("bytes_estimate"), "ledger_id").limit(count)
    order = order.withColumn("topic", F.expr("found[0].topic")).drop("found")
    return tuple(
        WorstLedger(
            row["ledger_id"],
            Severity(row["severity_rank"]),
            row["fragments"],
            int(row["bytes_estimate"]),
            tuple(row["missing"]),
            row["topic"] or "",
        )
        for row in order.collect()
    )


def to_mark(ledgers: DataFrame) -> Iterator[LedgerWithFindings]:
    """Stream ``ledgers_found`` to the driver, the most severe first, with two partitions in memory at a time.

    Rows are sent as Arrow batches. If the driver unpickled them one by one, this would cost as much as marking does.
    """
    columns = ("ledger_id", "missing", f"{_CRITICAL_MISSING} AS critical_missing", "bytes_estimate", "severity_rank")
    ordered = ledgers.selectExpr(*columns).orderBy("severity_rank", "ledger_id")
    for row in ordered.mapInArrow(_packed, _PACKED).toLocalIterator(prefetchPartitions=True):
        yield from _unpacked(row["packed"])


def _packed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield each batch as one value."""
    for batch in batches:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        yield pa.record_batch([pa.array([sink.getvalue().to_pybytes()], pa.binary())], names=["packed"])


def _unpacked(packed: bytes) -> Iterator[LedgerWithFindings]:
    for batch in pa.ipc.open_stream(packed):
        ledger_ids, missing, critical, sizes, ranks = batch.columns
        bookies = _bookies(missing), _bookies(critical)
        rows = zip(ledger_ids.to_pylist(), *bookies, sizes.to_pylist(), ranks.to_pylist(), strict=True)
        for ledger_id, of_ledger, of_critical, size, rank in rows:
            yield LedgerWithFindings(LedgerId(ledger_id), of_ledger, of_critical, int(size), rank)


def _bookies(column: pa.Array) -> Iterator[tuple[BookieId, ...]]:
    """Yield the lists of bookies in a column."""
    names = column.flatten().to_pylist()
    start = 0
    for count in column.value_lengths().to_pylist():
        yield tuple(map(BookieId, names[start : start + count]))
        start += count
