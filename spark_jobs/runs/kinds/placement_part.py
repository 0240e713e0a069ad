"""The placement check of ledgers that were already read: judge them, add up the results, and mark them if requested.

The run of the placement check reads ledgers in chunks and passes each chunk to this part. A run of everything passes
all ledgers at once, after reading them for its other checks as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame

from bookie.metadata.bookies.registration import Bookies
from bookie.model.ids import BookieId, LedgerId
from bookie.model.severity import Severity
from bookie.model.topology import Topology
from bookie.runtime.human import agreeing, counted
from spark_jobs.checks.findings import FindingKind
from spark_jobs.checks.placement_check import ensemble_verdicts, placed_fragments, placement_check
from spark_jobs.checks.placement_rules import PlacementRules, Spread
from spark_jobs.checks.rack_matrix import rack_cells
from spark_jobs.checks.sql_text import literal
from spark_jobs.report.counts import FindingSums, PlacementCounts, PublishOutcome, PublishResult, WorstLedger
from spark_jobs.runs.context import RunContext
from spark_jobs.runs.findings import finding_sums, ledgers_found, worst_ledgers
from spark_jobs.runs.kinds.rack_matrix import RackMatrix
from spark_jobs.runs.marking.held_back import held_back
from spark_jobs.runs.marking.limits import MarkLimiter
from spark_jobs.runs.marking.publish import publish
from spark_jobs.runs.port import Phase
from spark_jobs.runs.prerequisites import require_locations
from spark_jobs.runs.reading.completeness import ScanTotals
from spark_jobs.runs.releasing import unpersist

_NAMED_MAX: Final = 5
_UNKNOWN: Final = f"kind = {literal(FindingKind.UNKNOWN_PLACE.value)}"


@dataclass(frozen=True, slots=True)
class JudgedPlacement:
    """The findings of the check in some ledgers, which Spark keeps while they are processed."""

    ledgers: DataFrame
    """One row for each misplaced ledger."""
    unknown: DataFrame
    """Findings about fragments without a verdict."""
    fixable: DataFrame
    """Ids of the closed ledgers whose placement a replacement would improve."""
    sums: FindingSums
    worst: tuple[WorstLedger, ...]


@dataclass(slots=True)
class PlacementTally:
    """The numbers of fragments and ensembles of all judged ledgers, by verdict."""

    fragments: Counter[Spread] = field(default_factory=Counter)
    ensembles: Counter[Spread] = field(default_factory=Counter)
    outside_fragments: int = 0
    """Number of fragments with a member outside the bookie groups of the ledger."""
    matrix: RackMatrix = field(default_factory=RackMatrix)

    def plus(self, other: PlacementTally) -> None:
        """Add the numbers of other ledgers."""
        self.fragments += other.fragments
        self.ensembles += other.ensembles
        self.outside_fragments += other.outside_fragments
        self.matrix.plus(other.matrix)


class PlacementPart:
    """The check with one topology and policy. Belongs to the run's thread."""

    def __init__(self, context: RunContext, rules: PlacementRules, source: str) -> None:
        """Prepare; ``source`` names the node or file of the topology."""
        self._context = context
        self._settings = context.settings
        self._cluster = context.cluster
        self._rules = rules
        self._source = source

    @contextmanager
    def judged(self, ledgers: DataFrame, tally: PlacementTally, *, is_reported: bool) -> Iterator[JudgedPlacement]:
        """Judge rows of ``bk_ledgers``, and then add them to ``tally``.

        Raises:
            MetadataReadAgainError: Spark lost a part of ``ledgers``.
        """
        fragments = placed_fragments(ledgers, has_groups=bool(self._rules.topology.groups.names))
        verdicts = ensemble_verdicts(fragments, self._rules).persist(StorageLevel.MEMORY_AND_DISK)
        findings = placement_check(fragments, verdicts).persist(StorageLevel.MEMORY_AND_DISK)
        misplaced = findings.where(f"NOT ({_UNKNOWN})").drop("is_fixable")
        found = ledgers_found(misplaced).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            with self._context.tasks(Phase.CHECK, is_reported=is_reported):
                counted = verdicts.groupBy("spread", "is_outside").agg({"fragments": "sum", "*": "count"}).collect()
                sums = finding_sums(found)
                limit = self._settings.worst_ledgers_max if sums.severities else 0
                worst = worst_ledgers(found, limit) if limit else ()
                tally.matrix.add(rack_cells(ledgers, verdicts, self._rules.topology))
            for row in counted:
                tally.fragments[Spread(row["spread"])] += row["sum(fragments)"]
                tally.ensembles[Spread(row["spread"])] += row["count(1)"]
                tally.outside_fragments += row["sum(fragments)"] if row["is_outside"] else 0
            fixable = findings.where("is_fixable AND state = 'CLOSED'").select("ledger_id").distinct()
            unknown = findings.where(_UNKNOWN).drop("is_fixable")
            yield JudgedPlacement(found, unknown, fixable, sums, worst)
        finally:
            unpersist(found, findings, verdicts)

    def publish(self, judged: JudgedPlacement, limiter: MarkLimiter) -> PublishResult:
        """Mark the ledgers that a replacement would improve, if the run has to mark misplaced ledgers."""
        if not self._settings.mark_misplaced or not judged.sums.severities:
            return PublishResult(PublishOutcome.NOTHING_TO_PUBLISH)
        if self._settings.is_dry_run:
            return PublishResult(PublishOutcome.DRY_RUN)
        with self._context.tasks(Phase.PUBLISH, is_reported=False):
            ids = (LedgerId(row["ledger_id"]) for row in judged.fixable.orderBy("ledger_id").toLocalIterator())
            due = limiter.admitted(((ledger_id, ()), 0) for ledger_id in ids)
            published = publish(
                due,
                self._cluster,
                gate=self._context.gate,
                note=self._context.note_marks,
                count=limiter.count,
            )
        return replace(published, held_back=held_back(limiter))

    def counts(self, tally: PlacementTally, sums: FindingSums, totals: ScanTotals) -> PlacementCounts:
        """Return the summary of all judged ledgers."""
        policy = self._settings.placement_policy
        misplaced = {count.severity: count.ledgers for count in sums.severities}
        fragments, matrix = tally.fragments, tally.matrix
        return PlacementCounts(
            policy.min_racks,
            policy.min_zones,
            policy.min_regions,
            policy.is_strict,
            self._source,
            fragments=fragments.total(),
            ensembles=tally.ensembles.total(),
            misplaced_ledgers=misplaced.get(Severity.MISPLACED, 0),
            misplaced_fragments=fragments[Spread.MISPLACED],
            as_good_as_possible_fragments=fragments[Spread.AS_GOOD_AS_POSSIBLE],
            unknown_fragments=fragments[Spread.UNKNOWN],
            outside_groups_fragments=tally.outside_fragments,
            unreadable_groups_fragments=fragments[Spread.UNREADABLE_GROUPS],
            unknown_bookies=tuple(_unknown_bookies(totals, self._rules.topology)),
            rack_numbers=matrix.numbers,
            racks=matrix.pairs,
            racks_cut=matrix.is_cut,
        )


def placement_part(context: RunContext, known: AbstractSet[BookieId], bookies: Bookies) -> PlacementPart:
    """Return the check with the current topology.

    Args:
        context: the context of the run.
        known: every known bookie, registered or not.
        bookies: the registered bookies.

    Raises:
        NoTopologyError: there is no topology.
        InvalidTopologyError: the topology cannot be read.
        AccessDeniedError: this identity may not read it.
    """
    topology, source = context.cluster.topology(context.settings.topology_file)
    require_locations(topology)
    rules = PlacementRules.of(context.settings.placement_policy, topology, sorted(known), bookies)
    return PlacementPart(context, rules, source)


def not_judged(counts: PlacementCounts) -> tuple[str, ...]:
    """Return why the check is not complete, one sentence each."""
    return (*_unknown_places(counts), *_unreadable_groups(counts))


def _unreadable_groups(counts: PlacementCounts) -> Iterator[str]:
    if counts.unreadable_groups_fragments:
        number = counts.unreadable_groups_fragments
        what = f"{counted(number, 'fragment')} {agreeing(number, 'was', 'were')} judged without bookie groups"
        of = agreeing(number, "its ledger", "their ledgers")
        yield f"{what}, as the custom metadata of {of} cannot be read"


def _unknown_places(counts: PlacementCounts) -> Iterator[str]:
    if not counts.unknown_fragments:
        return
    some = ", ".join(counts.unknown_bookies[:_NAMED_MAX])
    more = f" and {len(counts.unknown_bookies) - _NAMED_MAX} more" if len(counts.unknown_bookies) > _NAMED_MAX else ""
    were = agreeing(counts.unknown_fragments, "was", "were")
    them = agreeing(len(counts.unknown_bookies), "it", "them")
    what = f"{counted(counts.unknown_fragments, 'fragment')} {were} not judged"
    yield f"{what}, as {counts.topology} has no location for {some}{more}: add {them}"


def _unknown_bookies(totals: ScanTotals, topology: Topology) -> list[BookieId]:
    named = map(BookieId, sorted(totals.ledgers_by_bookie))
    return [bookie for bookie in named if topology.known(bookie) is None]
