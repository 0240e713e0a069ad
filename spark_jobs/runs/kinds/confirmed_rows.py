"""Rows of a snapshot for further checks. A ledger that a check would report is read again from ZooKeeper (R99).

A snapshot decides only about closed ledgers on live bookies. The bookie check has no findings about these, but the
placement check and the lint may have some. So both judge the rows once, and the row of every ledger with a finding is
replaced by one with its current metadata. One case remains: a copy was moved to a worse place after the snapshot. A
later audit finds it.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from contextlib import ExitStack

from pyspark import StorageLevel
from pyspark.sql import DataFrame

from bookie.metadata.bookies.registration import Bookies
from bookie.metadata.bookies.topology import InvalidTopologyError
from bookie.metadata.port import AccessDeniedError
from bookie.model.ids import BookieId
from spark_jobs.checks.metadata_check import metadata_faults
from spark_jobs.runs.context import RunContext
from spark_jobs.runs.kinds.placement_part import PlacementTally, placement_part
from spark_jobs.runs.port import Phase
from spark_jobs.runs.prerequisites import NoTopologyError
from spark_jobs.runs.reading.reread_rows import reread_rows
from spark_jobs.runs.releasing import unpersist


def confirmed_rows(
    context: RunContext, stack: ExitStack, settled: DataFrame, known: AbstractSet[BookieId], bookies: Bookies
) -> DataFrame:
    """Return ``settled``, with current rows for all ledgers that would be reported.

    Args:
        context: the context of the run.
        stack: releases what Spark keeps.
        settled: rows of ``bk_ledgers`` of a snapshot.
        known: every known bookie, registered or not.
        bookies: the registered bookies.

    Raises:
        StoreUnavailableError, AccessDeniedError, ZooKeeperAccessError, ScanFailedError: see ``scan_ledgers``.
    """
    ids = metadata_faults(settled).select("ledger_id")
    with ExitStack() as judging:
        try:
            part = placement_part(context, known, bookies)
        except (NoTopologyError, InvalidTopologyError, AccessDeniedError):
            pass  # without a topology, no placement is judged
        else:
            judged = judging.enter_context(part.judged(settled, PlacementTally(), is_reported=False))
            ids = ids.unionByName(judged.ledgers.select("ledger_id")).unionByName(judged.unknown.select("ledger_id"))
        ids = ids.distinct().persist(StorageLevel.MEMORY_AND_DISK)
        stack.callback(unpersist, ids)
        with context.tasks(Phase.CHECK, is_reported=False):
            count = ids.count()
    if not count:
        return settled
    with context.tasks(Phase.SCAN, is_reported=False):
        again = reread_rows(context, ids, count, None)
    stack.callback(again.release)
    return settled.join(ids, "ledger_id", "left_anti").unionByName(again.suspects)
