"""Read ledgers again from ZooKeeper by their ids, in tasks of a Spark job."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Final

from pyspark.sql import DataFrame

from spark_jobs.datasource.ledger_schema import ledger_ddl
from spark_jobs.datasource.partitions import LEDGERS_PER_PARTITION_MAX
from spark_jobs.datasource.rereading import RereadTasks
from spark_jobs.datasource.task_rows import READING_DDL
from spark_jobs.runs.context import RunContext
from spark_jobs.runs.reading.ledger_scan import LedgerScan, collected, scan_of, task_options
from spark_jobs.runs.slots import session_slots

_REREAD_PER_TASK: Final = 20_000
"""Number of ledgers for each task. For fewer ledgers, a separate connection would cost more than it saves."""


def reread_rows(context: RunContext, ids: DataFrame, count: int, live: AbstractSet[str] | None) -> LedgerScan:
    """Read the current metadata of ledgers.

    Args:
        context: the context of the run.
        ids: ids of the ledgers, in a column ``ledger_id``.
        count: number of the ids.
        live: ledgers that name only these bookies are only counted and not returned; None: all are returned.

    Raises:
        StoreUnavailableError, AccessDeniedError, ZooKeeperAccessError, ScanFailedError: see ``scan_ledgers``.
    """
    settings = context.settings
    slots, budget = session_slots(context.spark), context.budget
    most = max(slots.tasks(count, _REREAD_PER_TASK), -(-count // LEDGERS_PER_PARTITION_MAX))
    partitions = min(max(1, -(-count // _REREAD_PER_TASK)), most)
    partitions = budget.tasks(partitions)
    tasks = RereadTasks(task_options(settings, live, budget.share(partitions, slots.most)))
    rows = ids.select("ledger_id").repartition(partitions)
    return scan_of(collected(rows.mapInArrow(tasks, f"{ledger_ddl(is_summarized=True)}, {READING_DDL}"), settings))
