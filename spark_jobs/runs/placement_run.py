"""The run of the placement check: which ensembles break the rack, zone and region policy.

It judges by the topology alone and marks nothing, as Apache's (docs/formats.md#auditor-checks): a misplaced ledger has
every copy it needs, and moving copies costs. With ``mark_misplaced`` it marks, with an empty list of replicas, the
closed ledgers of which a replacement would bring an ensemble nearer to the policy. bkheal's workers move those if they
have a topology, and Apache's if they are configured for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame

from bookie.model.errors import PermanentError
from bookie.model.ids import BookieId, LedgerId
from bookie.model.severity import Severity
from bookie.model.topology import Topology
from spark_jobs.checks.findings import FindingKind
from spark_jobs.checks.metadata_check import unreadable_metadata
from spark_jobs.checks.placement_check import ensemble_verdicts, placed_fragments, placement_check
from spark_jobs.checks.placement_rules import PlacementRules, Spread
from spark_jobs.checks.sql_text import literal
from spark_jobs.datasource.partitions import LeafParent
from spark_jobs.report.summary import FindingSums, PlacementCounts, PublishOutcome, PublishResult
from spark_jobs.runs import findings as report_sink
from spark_jobs.runs.brake import held_because
from spark_jobs.runs.chunks import chunks
from spark_jobs.runs.completeness import problems, short_parents
from spark_jobs.runs.context import RunContext
from spark_jobs.runs.held_back import held_back
from spark_jobs.runs.ledger_scan import LedgerScan, scan_ledgers
from spark_jobs.runs.limits import MarkLimiter
from spark_jobs.runs.outcome import CheckResult, FindingTotals, Outcome, ScanResult
from spark_jobs.runs.port import Phase, ProgressEvent
from spark_jobs.runs.publish import publish
from spark_jobs.runs.readings import with_one_reading

CHUNK_LEDGERS: Final = 250_000
"""Ledgers kept at a time: some 50 MB, and seconds of work between two gates."""
_NAMED_MAX: Final = 5
_UNKNOWN: Final = f"kind = {literal(FindingKind.UNKNOWN_PLACE.value)}"


class NoTopologyError(PermanentError):
    """No location of any bookie is known, so no ensemble can be judged."""


@dataclass(frozen=True, slots=True)
class _Chunk:
    """What one chunk has, kept by Spark while it is worked on."""

    scan: LedgerScan
    verdicts: DataFrame
    findings: DataFrame
    ledgers: DataFrame


class PlacementRun:
    """One run."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._settings = context.settings
        self._cluster = context.cluster
        self._limiter = MarkLimiter(self._settings.run_limits, self._cluster)

    def execute(self, cookies: AbstractSet[BookieId]) -> Outcome:
        """Do everything but the summary.

        Raises:
            NoTopologyError: there is none.
        """
        self._context.begin(Phase.PLAN)
        topology, source = self._cluster.topology(self._settings.topology_file)
        if not topology.locations:
            raise NoTopologyError(
                "there is no topology, so no placement can be judged: write a topology file and pass it with "
                "--topology-file, or store the topology in ZooKeeper"
            )
        bookies = self._cluster.bookies()
        known = cookies | bookies.registered
        if self._settings.mark_misplaced:
            held = held_because(known, bookies.registered, 0, None, self._settings.missing_share_max)
            if held is not None:
                return Outcome(None, CheckResult(bookies), held)
        rules = PlacementRules.of(self._settings.placement_policy, topology, known, bookies.writable)
        plan = self._cluster.leaf_parents()
        found, spreads, ensembles = self._chunks(plan, rules)
        recount = self._cluster.count_ledgers([parent.path for parent in short_parents(plan, found.totals)])
        counts = self._counts(source, found, spreads, ensembles)
        counts = replace(counts, unknown_bookies=tuple(_unknown_bookies(found, topology)))
        scanned = ScanResult(found.totals, bookies, problems(plan, found.totals, recount) + _not_judged(counts))
        return Outcome(scanned, CheckResult(bookies, found.sums, found.worst, found.published, placement=counts))

    def _chunks(
        self, plan: Sequence[LeafParent], rules: PlacementRules
    ) -> tuple[FindingTotals, Counter[Spread], Counter[Spread]]:
        """Judge everything; what was found, and fragments and ensembles by how they stand."""
        gathering = FindingTotals(self._settings.worst_ledgers_max)
        fragments: Counter[Spread] = Counter()
        ensembles: Counter[Spread] = Counter()
        total, done = sum(parent.planned for parent in plan), 0
        for parents in chunks(plan, CHUNK_LEDGERS):
            self._context.progress(ProgressEvent(Phase.CHECK, done, total))
            spreads = with_one_reading(partial(self._judge, parents, rules, gathering))
            for spread, (fragment_count, ensemble_count) in spreads.items():
                fragments[spread] += fragment_count
                ensembles[spread] += ensemble_count
            done += sum(parent.planned for parent in parents)
        return gathering, fragments, ensembles

    def _judge(
        self, parents: Sequence[LeafParent], rules: PlacementRules, gathering: FindingTotals
    ) -> Mapping[Spread, tuple[int, int]]:
        """Judge one chunk; the numbers of its fragments and ensembles by how they stand."""
        with self._chunk(parents, rules) as chunk:
            with self._context.tasks(Phase.CHECK, is_told=False):
                counted = chunk.verdicts.groupBy("spread").agg({"fragments": "sum", "*": "count"}).collect()
                sums = report_sink.sums(chunk.ledgers)
                limit = self._settings.worst_ledgers_max if sums.severities else 0
                worst = report_sink.worst_ledgers(chunk.ledgers, limit) if limit else ()
                others = chunk.findings.where(_UNKNOWN).drop("is_fixable")
                others = others.unionByName(unreadable_metadata(chunk.scan.suspects))
            gathering.add(chunk.scan.totals, sums, worst, self._publish(chunk, sums))
            with self._context.report.tolerated(), self._context.tasks(Phase.REPORT, is_told=False):
                self._context.report.write_findings(chunk.ledgers, others)
        return {Spread(row["spread"]): (row["sum(fragments)"], row["count(1)"]) for row in counted}

    @contextmanager
    def _chunk(self, parents: Sequence[LeafParent], rules: PlacementRules) -> Iterator[_Chunk]:
        with self._context.tasks(Phase.SCAN, is_told=False):
            scan = scan_ledgers(self._context.spark, self._settings, parents, None)
        fragments = placed_fragments(scan.suspects)
        verdicts = ensemble_verdicts(fragments, rules).persist(StorageLevel.MEMORY_AND_DISK)
        findings = placement_check(fragments, verdicts).persist(StorageLevel.MEMORY_AND_DISK)
        misplaced = findings.where(f"NOT ({_UNKNOWN})").drop("is_fixable")
        ledgers = report_sink.ledgers_found(misplaced).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            yield _Chunk(scan, verdicts, findings, ledgers)
        finally:
            for kept in (ledgers, findings, verdicts):
                kept.unpersist()
            scan.release()

    def _publish(self, chunk: _Chunk, sums: FindingSums) -> PublishResult:
        if not self._settings.mark_misplaced or not sums.severities:
            return PublishResult(PublishOutcome.NOTHING_TO_PUBLISH)
        if self._settings.is_dry_run:
            return PublishResult(PublishOutcome.DRY_RUN)
        fixable = chunk.findings.where("is_fixable AND state = 'CLOSED'").select("ledger_id").distinct()
        with self._context.tasks(Phase.PUBLISH, is_told=False):
            ids = (LedgerId(row["ledger_id"]) for row in fixable.orderBy("ledger_id").toLocalIterator())
            due = self._limiter.admitted(((ledger_id, ()), 0) for ledger_id in ids)
            published = publish(due, self._cluster, gate=self._context.gate, note=self._context.note_marks)
        return replace(published, held_back=held_back(self._limiter))

    def _counts(
        self, source: str, found: FindingTotals, fragments: Counter[Spread], ensembles: Counter[Spread]
    ) -> PlacementCounts:
        policy = self._settings.placement_policy
        misplaced = {count.severity: count.ledgers for count in found.sums.severities}
        return PlacementCounts(
            policy.min_racks,
            policy.min_zones,
            policy.min_regions,
            policy.is_strict,
            source,
            fragments=fragments.total(),
            ensembles=ensembles.total(),
            misplaced_ledgers=misplaced.get(Severity.MISPLACED, 0),
            misplaced_fragments=fragments[Spread.MISPLACED],
            as_good_as_possible_fragments=fragments[Spread.AS_GOOD_AS_POSSIBLE],
            unknown_fragments=fragments[Spread.UNKNOWN],
        )


def _unknown_bookies(found: FindingTotals, topology: Topology) -> list[BookieId]:
    named = map(BookieId, sorted(found.totals.ledgers_by_bookie))
    return [bookie for bookie in named if topology.known(bookie) is None]


def _not_judged(counts: PlacementCounts) -> tuple[str, ...]:
    if not counts.unknown_fragments:
        return ()
    some = ", ".join(counts.unknown_bookies[:_NAMED_MAX])
    more = f" and {len(counts.unknown_bookies) - _NAMED_MAX} more" if len(counts.unknown_bookies) > _NAMED_MAX else ""
    what = f"{counts.unknown_fragments} fragments were not judged"
    return (f"{what}, as {counts.topology} has no location for {some}{more} stand: add them",)
