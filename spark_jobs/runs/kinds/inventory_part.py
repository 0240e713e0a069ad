"""The inventory check of a run of everything: ask the bookies, compare, look again, and add up.

The bookies are asked after the metadata is read. If a bookie holds a ledger that the metadata does not place there, the
metadata of the ledger is then read again from ZooKeeper, after a sync. So a ledger created, moved or deleted during the
run is not a finding. Nothing is marked and nothing is deleted, because bookies collect garbage by themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 (the name that every Spark user knows)

from bookie.metadata.access import current_access
from bookie.model.ids import BookieId, LedgerId
from bookie.model.times import rfc3339_if_known
from bookie.runtime.human import counted
from spark_jobs.checks.inventory.asking import HELD_DDL, InventoryState, InventoryTasks
from spark_jobs.checks.inventory.comparison import damage_findings, surplus_findings, suspects
from spark_jobs.checks.inventory.second_look import SEEN_DDL, InventoryLookSettings, checking
from spark_jobs.checks.inventory.verdict import CopyNotJudged, CopyVerdict, Grace
from spark_jobs.report.counts import InventoryBookie, InventoryCounts
from spark_jobs.runs.context import RunContext
from spark_jobs.runs.port import Phase
from spark_jobs.runs.releasing import unpersist
from spark_jobs.runs.slots import session_slots

INVENTORY: Final = "inventory"
"""Name of this check in the list of checks of a run."""
_OLD_LEDGERS: Final = 20
_SAMPLED: Final = 1000
"""Number of ledgers of a sample of all. Their nodes and those of the newest old ledgers are read to find a transaction
before the grace time."""
_NAMED_MAX: Final = 5
_NOT_JUDGED: Final = CopyVerdict.NOT_JUDGED.value
_FACTS: Final = """
    inline(transform(concat(array(CAST(NULL AS string)), bookies),
                     bookie -> named_struct('verdict', verdict, 'reason', reason, 'bookie_id', bookie)))
"""
"""What a row of ``SEEN_DDL`` adds to the sums: its ledger, which has one row per verdict, and its copies."""


@dataclass(frozen=True, slots=True)
class FoundInventory:
    """The result of the inventory check."""

    findings: tuple[DataFrame, ...]
    counts: InventoryCounts
    problem: str = ""
    """Why the check is not complete."""


def inventory_part(
    context: RunContext, stack: ExitStack, ledgers: DataFrame, bookies: Sequence[BookieId]
) -> FoundInventory:
    """Compare the inventories of bookies with ``ledgers``.

    Args:
        context: the context of the run.
        stack: releases what Spark keeps.
        ledgers: rows of ``bk_ledgers`` for all ledgers.
        bookies: the registered bookies.

    Raises:
        StoreUnavailableError, AccessDeniedError, ScanFailedError, MetadataReadAgainError: see ``RunContext.tasks``.
    """
    grace_s = context.settings.inventory_grace_s
    if not bookies:
        return FoundInventory((), InventoryCounts(grace_s))
    held = _asked(context, bookies).persist(StorageLevel.MEMORY_AND_DISK)
    stack.callback(unpersist, held)
    with context.tasks(Phase.ASK, is_reported=False):
        answers = held.where("answer IS NOT NULL").select("bookie_id", "answer.*").collect()
        if not any(row["ledgers"] or row["damaged"] for row in answers):
            counts = _counts(grace_s, answers, (), 0)
            return FoundInventory((), counts, _problem(counts))
        grace = _grace(context, ledgers)
    slots, budget = session_slots(context.spark), context.budget
    tasks = budget.tasks(slots.now)
    second_look = InventoryLookSettings(
        context.settings.metadata_uri,
        context.settings.connect_timeout_s,
        grace,
        current_access(),
        budget.share(tasks, slots.most),
    )
    seen = suspects(held, ledgers).repartition(tasks, "ledger_id").mapInArrow(checking(second_look), SEEN_DDL)
    seen = seen.persist(StorageLevel.MEMORY_AND_DISK)
    stack.callback(unpersist, seen)
    damage = damage_findings(held, ledgers).persist(StorageLevel.MEMORY_AND_DISK)
    stack.callback(unpersist, damage)
    with context.tasks(Phase.CHECK, is_reported=False):
        sums = seen.selectExpr(_FACTS).groupBy("verdict", "reason", "bookie_id").count().collect()
        damaged = damage.count() if any(row["damaged"] for row in answers) else 0
    counts = _counts(grace_s, answers, sums, damaged)
    findings = [surplus_findings(seen)] * bool(counts.surplus) + [damage] * bool(damaged)
    return FoundInventory(tuple(findings), counts, _problem(counts))


def _asked(context: RunContext, bookies: Sequence[BookieId]) -> DataFrame:
    settings, spark = context.settings, context.spark
    ask = InventoryTasks(
        settings.metadata_uri,
        settings.connect_timeout_s,
        current_access(),
        settings.security,
        tuple(bookies),
        settings.inventory_token_file,
    )
    tasks = context.budget.tasks(min(len(bookies), session_slots(spark).tasks(len(bookies), 1)))
    return spark.range(0, len(bookies), 1, tasks).mapInArrow(ask, HELD_DDL)


def _grace(context: RunContext, ledgers: DataFrame) -> Grace:
    """Return the limits of age for a verdict.

    ZooKeeper does not record when a node was deleted, but which transaction last changed the children of a node. The
    deletion is old if this transaction is not after another transaction that is known to be old. Only ZooKeeper's own
    times of a node prove this; the creation time in the metadata only selects nodes. Most clients do not write a
    creation time, so a sample of all ledgers is also read.
    """
    grace_ms = round(context.settings.inventory_grace_s * 1000)
    before_ms = context.clock.epoch_ms() - grace_ms
    if not grace_ms:
        return Grace(before_ms, None)
    old = ledgers.where(F.col("ctime_ms") <= before_ms).orderBy(F.desc("ctime_ms")).limit(_OLD_LEDGERS)
    sampled = ledgers.orderBy(F.xxhash64("ledger_id")).limit(_SAMPLED)
    rows = old.select("ledger_id").collect() + sampled.select("ledger_id").collect()
    ids = [LedgerId(ledger_id) for ledger_id in sorted({row["ledger_id"] for row in rows})]
    return Grace(before_ms, context.cluster.zxid_before(ids, before_ms))


def _counts(grace_s: float, answers: Sequence[Row], sums: Sequence[Row], damaged: int) -> InventoryCounts:
    ledgers = {(row["verdict"], row["reason"]): row["count"] for row in sums if row["bookie_id"] is None}
    copies = {(row["bookie_id"], row["verdict"]): row["count"] for row in sums if row["reason"] is None}
    return InventoryCounts(
        grace_s,
        tuple(_bookie(row, copies) for row in sorted(answers, key=lambda row: row["bookie_id"])),
        ledgers.get((CopyVerdict.OVER_REPLICATED.value, None), 0),
        ledgers.get((CopyVerdict.UNOWNED.value, None), 0),
        damaged,
        {reason.value: count for reason in CopyNotJudged if (count := ledgers.get((_NOT_JUDGED, reason.value), 0))},
    )


def _bookie(row: Row, copies: Mapping[tuple[str, str], int]) -> InventoryBookie:
    bookie = row["bookie_id"]
    return InventoryBookie(
        bookie_id=bookie,
        state=row["state"],
        detail=row["detail"],
        ledgers=row["ledgers"],
        over_replicated=copies.get((bookie, CopyVerdict.OVER_REPLICATED.value), 0),
        unowned=copies.get((bookie, CopyVerdict.UNOWNED.value), 0),
        damaged_entries=row["damaged"],
        scrub=row["scrub"],
        scrub_finished=_time(row["scrub_finished_ms"]),
        collection_finished=_time(row["collection_finished_ms"]),
    )


def _time(at_ms: int) -> str:
    """Return a time that a bookie reports; empty if it is unknown or impossible."""
    return rfc3339_if_known(at_ms) or ""


def _problem(counts: InventoryCounts) -> str:
    """Return the failures of bookies. Bookies without an inventory are unknown and do not make a run incomplete."""
    failed = [each for each in counts.bookies if InventoryState(each.state).is_failure]
    if not failed:
        return ""
    reasons = dict[str, list[str]]()
    for each in failed[:_NAMED_MAX]:
        reasons.setdefault(f"{each.state}: {each.detail}", []).append(each.bookie_id)
    named = ", ".join(f"{', '.join(bookies)} ({reason})" for reason, bookies in reasons.items())
    more = f" and {len(failed) - _NAMED_MAX} more" if len(failed) > _NAMED_MAX else ""
    return f"the ledgers of {counted(len(failed), 'bookie')} are not all known: {named}{more}"
