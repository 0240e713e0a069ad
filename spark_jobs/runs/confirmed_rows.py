"""Rows of a snapshot for further checks: what one of them would report is read again in ZooKeeper first (R99).

A snapshot decides only about closed ledgers on live bookies. The check of bookies has nothing to report about these.
Placement and the lint may have. So both judge the rows once, and the ledgers with a finding are replaced by what they
are now. What remains is a ledger whose copy was moved after the snapshot to a worse place: a later audit finds it.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from contextlib import ExitStack

from pyspark import StorageLevel
from pyspark.sql import DataFrame

from bookie.metadata.bookies.registration import Bookies
from bookie.metadata.bookies.topology import InvalidTopologyError
from bookie.model.ids import BookieId
from spark_jobs.checks.metadata_check import metadata_faults
from spark_jobs.runs.context import RunContext
from spark_jobs.runs.placement_part import NoTopologyError, PlacementTally, placement_part
from spark_jobs.runs.port import Phase
from spark_jobs.runs.reread_rows import reread_rows


def confirmed_rows(
    context: RunContext, stack: ExitStack, settled: DataFrame, known: AbstractSet[BookieId], bookies: Bookies
) -> DataFrame:
    """Return ``settled`` with the ledgers that would be reported as they are now.

    Args:
        context: of the run.
        stack: releases what Spark keeps.
        settled: rows of ``bk_ledgers`` of a snapshot.
        known: every known bookie, registered or not.
        bookies: those that are registered.

    Raises:
        StoreUnavailableError, AccessDeniedError, ZooKeeperAccessError, ScanFailedError: see ``scan_ledgers``.
    """
    ids = metadata_faults(settled).select("ledger_id")
    with ExitStack() as judging:
        try:
            part = placement_part(context, known, bookies)
        except (NoTopologyError, InvalidTopologyError):
            pass  # then no placement is judged
        else:
            judged = judging.enter_context(part.judged(settled, PlacementTally(), is_told=False))
            ids = ids.unionByName(judged.ledgers.select("ledger_id")).unionByName(judged.unknown.select("ledger_id"))
        ids = ids.distinct().persist(StorageLevel.MEMORY_AND_DISK)
        stack.callback(ids.unpersist)
        with context.tasks(Phase.CHECK, is_told=False):
            count = ids.count()
    if not count:
        return settled
    with context.tasks(Phase.SCAN, is_told=False):
        again = reread_rows(context, ids, count, None)
    stack.callback(again.release)
    return settled.join(ids, "ledger_id", "left_anti").unionByName(again.suspects)
