"""The time since when each ledger has lacked copies. Each run continues the previous state with its findings.

A ledger is unhealthy if some entry has fewer copies than its write quorum, or if its metadata cannot be read. A loss
accepted by an operator does not count. A run that saw every ledger removes the ledgers without a finding from the
state; any other run only adds ledgers, because a ledger that it did not see may be unhealthy.

The state of one check of one cluster is one file, KIND-CLUSTER-RUN.parquet; only the file of the newest run counts. A
run continues the newest state that is not dated after the run, and its upkeep then removes the others.

The state is computed for one range of ledger ids after another, so a run with millions of findings needs only the
memory for one range.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Final

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from bookie.model.run import RunKind
from bookie.model.severity import Severity
from spark_jobs.checks.findings import FindingKind
from spark_jobs.report.summary import RunSummary
from spark_jobs.report.tables.files import day_dir, day_of, is_parquet, table_files
from spark_jobs.report.tables.schemas import UNHEALTHY
from spark_jobs.report.tables.sql_text import sql_list, sql_text

_log = logging.getLogger(__name__)

_MEMORY: Final = "256MiB"
"""DuckDB's memory limit, above which it uses the disk. One range needs less."""
_RANGE_ROWS: Final = 250_000
"""Approximate number of findings, and of ledgers of the previous state, in one range of ledger ids."""
_GROUP_ROWS: Final = 122_880
"""Number of rows in a row group of the file."""
_ATTEMPTS_MAX: Final = 3
_KINDS: Final = {
    RunKind.BOOKIES: RunKind.BOOKIES,
    RunKind.REPLICAS: RunKind.REPLICAS,
    RunKind.EVERYTHING: RunKind.BOOKIES,
}
"""For each kind of run, the kind of the state that it continues."""
_BYTES: Final = """CAST(CASE WHEN sum(bytes_estimate) > 9223372036854775807 THEN 9223372036854775807
                WHEN sum(bytes_estimate) < 0 THEN 0 ELSE sum(bytes_estimate) END AS BIGINT)"""
"""SQL for the sum of bytes. With damaged lengths of ledgers, it may be negative or exceed what a column can hold. Null:
no size is known."""
_CURRENT: Final = f"""
    SELECT ledger_id, CAST(min(severity_rank) AS INTEGER) AS severity_rank,
           count(*) AS findings, {_BYTES} AS bytes_estimate
    FROM {{findings}}
    WHERE kind <> '{FindingKind.LOSS_ACCEPTED.value}'
      AND (severity_rank <= {Severity.BELOW_WRITE_QUORUM.value} OR kind = '{FindingKind.UNREADABLE_METADATA.value}')
      AND {{ids}}
    GROUP BY ledger_id
"""  # noqa: S608 - names are ours
_NOTHING: Final = (
    "(SELECT CAST(NULL AS BIGINT) AS ledger_id, CAST(NULL AS INTEGER) AS severity_rank, "
    "CAST(NULL AS BIGINT) AS bytes_estimate, CAST(NULL AS VARCHAR) AS kind WHERE false)"
)
_NO_STATE: Final = (
    "(SELECT CAST(NULL AS BIGINT) AS ledger_id, CAST(NULL AS INTEGER) AS severity_rank, "
    "CAST(NULL AS VARCHAR) AS severity, "
    "CAST(NULL AS BIGINT) AS findings, CAST(NULL AS BIGINT) AS bytes_estimate, "
    "CAST(NULL AS TIMESTAMPTZ) AS unhealthy_since, CAST(NULL AS VARCHAR) AS first_run_id, "
    "CAST(NULL AS TIMESTAMPTZ) AS last_found, CAST(NULL AS VARCHAR) AS run_id WHERE false)"
)


def write_next_state(report_dir: Path, summary: RunSummary, findings: Sequence[Path]) -> None:
    """Write the state after a run. A failure of DuckDB is logged, and the next run continues the previous state.

    Args:
        report_dir: the report directory of all runs.
        summary: the summary of the run.
        findings: the files of its findings; empty: it has none.

    Raises:
        OSError: the file cannot be written.
    """
    if summary.kind not in _KINDS:
        return
    directory = day_dir(report_dir, UNHEALTHY.name, day_of(summary.finished_ms))
    directory.mkdir(parents=True, exist_ok=True)
    prefix = state_prefix(_KINDS[summary.kind], summary.cluster.instance_id)
    target = directory / f"{prefix}{summary.run_id}.parquet"
    temporary = directory / f".{target.name}.tmp"
    for attempt in range(_ATTEMPTS_MAX):
        files = table_files(report_dir, UNHEALTHY.name, summary.finished_ms).partitioned
        try:
            before = [path for path in files if path.name.startswith(prefix) and is_parquet(path)]
            _write(temporary, summary, findings, before)
        except (duckdb.Error, pa.ArrowException, FileNotFoundError) as error:
            # Another run may have replaced the state after the listing.
            if attempt == _ATTEMPTS_MAX - 1:
                reason = {"run_id": summary.run_id, "reason": str(error)}
                _log.warning("since when ledgers are unhealthy is not recorded", extra=reason)
        else:
            temporary.replace(target)
            return


def _write(path: Path, summary: RunSummary, findings: Sequence[Path], before: Sequence[Path]) -> None:
    """Write the state to a file, which is on the disk before this returns. After an error, there is no file."""
    spill = path.with_suffix(".spill")
    config: dict[str, str | bool | int | float | list[str]] = {
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "python_enable_replacements": False,
        "memory_limit": _MEMORY,
        "threads": 2,
        "temp_directory": str(spill.absolute()),
    }
    try:
        with duckdb.connect(":memory:", config=config) as connection, path.open("wb") as file:
            connection.execute("SET TimeZone = 'UTC'")
            questions = (_state(summary, findings, before, ids) for ids in _ranges(connection, findings, before))
            answers = (connection.sql(question).to_arrow_reader(_GROUP_ROWS) for question in questions)
            first = next(answers)
            with pq.ParquetWriter(file, first.schema, compression="zstd") as writer:
                for batch in chain.from_iterable(chain([first], answers)):
                    writer.write_batch(batch)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    finally:
        shutil.rmtree(spill, ignore_errors=True)


def _ranges(connection: duckdb.DuckDBPyConnection, findings: Sequence[Path], before: Sequence[Path]) -> list[str]:
    """Return SQL conditions for ranges of ledger ids, ascending. Every id is in exactly one range."""
    files = [*findings, *before]
    count = -(-sum(pq.read_metadata(path).num_rows for path in files) // _RANGE_ROWS)
    if count <= 1:
        return ["true"]
    shares = [number / count for number in range(1, count)]
    found = connection.execute(f"SELECT approx_quantile(ledger_id, {shares}) FROM {_read(files)}")  # noqa: S608
    ((cuts,),) = found.fetchall()
    bounds = sorted(set(cuts or ()))
    return [
        " AND ".join([f"ledger_id >= {low}"] * (low is not None) + [f"ledger_id < {high}"] * (high is not None))
        or "true"
        for low, high in pairwise([None, *bounds, None])
    ]


def state_prefix(kind: RunKind, instance_id: str) -> str:
    """Return the beginning of the file names of one check of one cluster."""
    return f"{kind.value}-{hashlib.sha256(instance_id.encode()).hexdigest()[:16]}-"


def has_seen_every_ledger(summary: RunSummary) -> bool:
    """Return whether a ledger without a finding counts as healthy after the run. Pure."""
    asked = summary.replicas
    is_known = asked is None or not asked.unknown
    return summary.is_read and summary.held_because is None and summary.is_every_ledger and is_known


def _state(summary: RunSummary, findings: Sequence[Path], before: Sequence[Path], ids: str) -> str:
    """Return the SQL for the state of the ledgers that the condition ``ids`` selects."""
    current = _CURRENT.format(findings=_read(findings) if findings else _NOTHING, ids=ids)
    known = f"(SELECT * FROM {_read(before)} WHERE {ids})" if before else _NO_STATE  # noqa: S608 - texts are quoted
    ends = "now.ledger_id IS NOT NULL" if has_seen_every_ledger(summary) else "true"
    finished = f"make_timestamptz({summary.finished_ms * 1000})"
    run_id = sql_text(summary.run_id)
    labels = " ".join(f"WHEN {level.value} THEN {sql_text(level.label)}" for level in Severity)

    def chosen(new: str, old: str) -> str:
        return f"CASE WHEN now.ledger_id IS NULL THEN before.{old} ELSE {new} END AS {old}"

    return f"""
        SELECT {chosen(run_id, "run_id")}, {sql_text(summary.cluster.instance_id)} AS instance_id,
               {sql_text(_KINDS[summary.kind].value)} AS run_kind, ledger_id,
               {chosen(f"CASE now.severity_rank {labels} END", "severity")},
               {chosen("now.severity_rank", "severity_rank")}, {chosen("now.findings", "findings")},
               {chosen("now.bytes_estimate", "bytes_estimate")},
               coalesce(before.unhealthy_since, {finished}) AS unhealthy_since,
               coalesce(before.first_run_id, {run_id}) AS first_run_id,
               {chosen(finished, "last_found")}
        FROM ({current}) AS now FULL JOIN {known} AS before USING (ledger_id)
        WHERE {ends}
        ORDER BY ledger_id
    """  # noqa: S608 - texts are quoted


def _read(paths: Sequence[Path]) -> str:
    files = sql_list([str(path.absolute()) for path in paths])
    return f"read_parquet({files}, hive_partitioning = false, union_by_name = true)"
