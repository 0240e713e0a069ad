"""The tables of all runs: names, columns, and their common version. Pure; docs/reports.md shows them.

A new column does not change the version: a reader that does not know it ignores it, and older rows have null. The
version changes if a column changes its meaning or disappears. A reader refuses a newer version.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bookie.model.severity import Severity

SCHEMA_VERSION: Final = 1
"""The common version of all tables."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its name, its SQL type, and its meaning."""

    name: str
    type: str
    meaning: str


@dataclass(frozen=True, slots=True)
class TableSchema:
    """A table: the meaning of one row, and the columns in order."""

    name: str
    row: str
    columns: tuple[Column, ...]
    is_by_run: bool = True
    """Whether each run adds rows. Otherwise, each file is a whole state, and only the newest one counts."""

    @property
    def column_names(self) -> tuple[str, ...]:
        """The names of the columns, in order."""
        return tuple(column.name for column in self.columns)


_RUN_ID: Final = Column("run_id", "VARCHAR", "the run; begins with the time of its start")
_DAY: Final = Column("day", "DATE", "the day on which the run finished, UTC; the partition")
_FINISHED: Final = Column("finished", "TIMESTAMP", "end of the run, UTC")


def _sizes() -> tuple[Column, ...]:
    return tuple(
        Column(f"{unit}_{severity.label}", "BIGINT", f"{meaning} of this severity")
        for severity in Severity
        for unit, meaning in (
            ("ledgers", "ledgers whose worst finding is"),
            ("fragments", "findings"),
            ("bytes", "estimated payload in findings"),
        )
    )


RUNS: Final = TableSchema(
    "runs",
    "one run",
    (
        _RUN_ID,
        _DAY,
        Column("instance_id", "VARCHAR", "the cluster"),
        Column("run_kind", "VARCHAR", "the check: bookies, placement, replicas, references or everything"),
        Column("dry_run", "BOOLEAN", "whether it was not to mark anything"),
        Column("started", "TIMESTAMP", "start of the check, UTC: after the start of Spark"),
        _FINISHED,
        Column("verdict", "VARCHAR", "the run in a word, as in `summary.json`"),
        Column("complete", "BOOLEAN", "whether every ledger was checked"),
        Column("ledgers", "BIGINT", "ledgers that were read, also unreadable ones"),
        Column("fragments", "BIGINT", "fragments that were read"),
        Column("unreadable", "BIGINT", "ledgers whose metadata cannot be read"),
        Column("vanished", "BIGINT", "ledgers that were deleted during the run"),
        Column("open", "BIGINT", "ledgers that are open"),
        Column("in_recovery", "BIGINT", "ledgers that are in recovery"),
        Column("closed", "BIGINT", "ledgers that are closed"),
        *_sizes(),
        Column("publish_outcome", "VARCHAR", "what became of the findings, as in `summary.json`"),
        Column("ledgers_published", "BIGINT", "ledgers that were marked"),
        Column("tasks_changed", "BIGINT", "tasks that were created or extended, in two passes after a loss"),
        Column("ledgers_waiting", "BIGINT", "ledgers of which nothing was marked yet"),
        Column("tables_version", "BIGINT", "the version of the tables; null: a release without the table `findings`"),
    ),
)

BOOKIES: Final = TableSchema(
    "bookies",
    "a bookie in one run",
    (
        _RUN_ID,
        _DAY,
        _FINISHED,
        Column("bookie_id", "VARCHAR", "the bookie"),
        Column("state", "VARCHAR", "writable, read_only or lost"),
        Column("has_cookie", "BOOLEAN", "whether it has a cookie"),
        Column("ledgers", "BIGINT", "ledgers that name it"),
        Column("fragments", "BIGINT", "fragments that name it"),
        Column("ledgers_found", "BIGINT", "ledgers with a finding because of it"),
        Column("fragments_found", "BIGINT", "findings because of it"),
    ),
)

FINDINGS: Final = TableSchema(
    "findings",
    "a finding of one run",
    (
        _RUN_ID,
        _DAY,
        Column("kind", "VARCHAR", "what it is about, such as missing_bookie or unreadable_metadata"),
        Column("ledger_id", "BIGINT", "the ledger; null: the finding is about a bookie"),
        Column("fragment_index", "INTEGER", "the fragment, from 0; null: the whole ledger"),
        Column("fragment_first_entry_id", "BIGINT", "first entry of the fragment"),
        Column("fragment_last_entry_id", "BIGINT", "last entry; null: only the writer can determine it"),
        Column("is_last_fragment", "BOOLEAN", "whether no fragment follows"),
        Column("state", "VARCHAR", "state of the ledger: closed, open or in_recovery"),
        Column("missing_positions", "INTEGER[]", "positions of the ensemble without a copy, ascending"),
        Column("missing", "VARCHAR[]", "the bookies there, each once"),
        Column("copies_min", "INTEGER", "copies of the entry with the fewest"),
        Column("severity", "VARCHAR", "lost, no_live_copy, critical ...; null: the kind has none"),
        Column("severity_rank", "INTEGER", "the severity as a number; a smaller one is worse"),
        Column("entries", "BIGINT", "entries of the fragment; null: unknown"),
        Column("bytes_estimate", "BIGINT", "payload to copy; null: unknown"),
        Column("detail", "VARCHAR", "more about it"),
        Column("write_quorum", "INTEGER", "of the ledger"),
        Column("ack_quorum", "INTEGER", "of the ledger"),
        Column("tenant", "VARCHAR", "of Pulsar"),
        Column("namespace", "VARCHAR", "of Pulsar"),
        Column("topic", "VARCHAR", "of Pulsar"),
        Column("component", "VARCHAR", "what of the topic the ledger contains"),
        Column("subscription", "VARCHAR", "of Pulsar"),
    ),
)

TASKS: Final = TableSchema(
    "tasks",
    "a ledger that a run marked for repair",
    (
        _RUN_ID,
        _DAY,
        Column("marked_at", "TIMESTAMP", "when the metadata store confirmed the mark, UTC"),
        Column("ledger_id", "BIGINT", "the ledger"),
        Column("missing", "VARCHAR[]", "the bookies that the mark names; empty: a better placement is requested"),
    ),
)

UNHEALTHY: Final = TableSchema(
    "ledgers_unhealthy_since",
    "a ledger that is unhealthy now",
    (
        Column("run_id", "VARCHAR", "the last run that found it"),
        Column("day", "DATE", "the day on which the last run of the check finished, UTC; the partition"),
        Column("instance_id", "VARCHAR", "the cluster"),
        Column("run_kind", "VARCHAR", "the check: bookies, also for runs of everything, or replicas"),
        Column("ledger_id", "BIGINT", "the ledger"),
        Column("severity", "VARCHAR", "its worst severity; null: its metadata cannot be read"),
        Column("severity_rank", "INTEGER", "the severity as a number; a smaller one is worse"),
        Column("findings", "BIGINT", "its findings"),
        Column("bytes_estimate", "BIGINT", "payload to copy; null: unknown"),
        Column(
            "unhealthy_since",
            "TIMESTAMP",
            "end of the first of the runs that found it without a break, UTC",
        ),
        Column("first_run_id", "VARCHAR", "that run"),
        Column(
            "last_found",
            "TIMESTAMP",
            "end of the last run that found it, UTC",
        ),
    ),
    is_by_run=False,
)

TABLES: Final = {table.name: table for table in (RUNS, FINDINGS, BOOKIES, TASKS, UNHEALTHY)}
"""Every table, by name."""
