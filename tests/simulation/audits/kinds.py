"""Runs of everything, of placement and of replicas in a simulated history, without Spark.

Real code reads the metadata, judges ensembles, asks bookies, marks and sums up. Only the operations on tables of Spark
are replaced by plain ones on rows.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final, Self, cast

from pyspark.sql import DataFrame
from typing_extensions import override

from bookie.metadata.bookies.registration import Bookies, Registrations
from bookie.metadata.cluster import open_cluster
from bookie.metadata.ledgers.ledgers import LedgerStore
from bookie.metadata.tasks.decisions import Decisions
from bookie.model.ids import BookieId, LedgerId
from bookie.model.severity import Severity
from bookie.wire.security import SecurityFiles
from spark_jobs.checks.findings import FindingKind
from spark_jobs.checks.placement_rules import PlacementRules, Spread
from spark_jobs.checks.replicas.asking import Asker
from spark_jobs.checks.replicas.expected import settled_row
from spark_jobs.checks.replicas.task import TaskSettings, accepted_entries, answer_rows
from spark_jobs.group_rows import parse_groups_text
from spark_jobs.report.counts import FindingSums, LintCounts, SeverityCount, WorstLedger
from spark_jobs.runs import run
from spark_jobs.runs.kinds import placement_run, replica_run
from spark_jobs.runs.kinds.everything import AllFurtherChecks, dangling_cookies
from spark_jobs.runs.kinds.placement_part import JudgedPlacement, PlacementPart, PlacementTally
from spark_jobs.runs.kinds.replica_run import ReplicaRun
from spark_jobs.runs.marking.held_back import LedgerWithFindings
from spark_jobs.runs.marking.publish import Marking
from spark_jobs.runs.outcome import ScanResult
from spark_jobs.runs.reading.ledger_scan import LedgerScan
from spark_jobs.runs.run_report import RunReport
from tests.simulation.audits.holding import HeldEntriesTransport
from tests.simulation.audits.process import AuditProcess, Rows, current_process
from tests.worlds.clocks import ManualClock
from tests.worlds.cluster import ROOT

_CONDITIONS: Final[Mapping[str, Callable[[Mapping[str, Any]], bool]]] = {
    "counts IS NULL": lambda row: row["counts"] is None,
    "kind = 'LOSS_ACCEPTED'": lambda row: row["kind"] == "LOSS_ACCEPTED",
    "NOT kind = 'LOSS_ACCEPTED'": lambda row: row["kind"] != "LOSS_ACCEPTED",
}


class FindingRows(Rows):
    """The parts of a ``DataFrame`` that the runs use for findings."""

    def where(self, condition: str) -> Self:
        return type(self)([row for row in self.rows if _CONDITIONS[condition](row)])

    def persist(self, level: object) -> Self:
        return self

    def drop(self, column: str) -> Self:
        return self

    def coalesce(self, count: int) -> Self:
        return self

    def selectExpr(self, *columns: str) -> Self:  # noqa: N802 (Spark's name)
        return self

    def orderBy(self, *columns: str) -> Self:  # noqa: N802 (Spark's name)
        return type(self)(sorted(self.rows, key=lambda row: [row[column] for column in columns]))

    def toLocalIterator(self) -> Iterator[Mapping[str, Any]]:  # noqa: N802 (Spark's name)
        return iter(self.rows)

    def unionByName(self, other: Rows) -> FindingRows:  # noqa: N802 (Spark's name)
        return FindingRows([*self.rows, *other.rows])


class _LastRows(FindingRows):
    """Rows that Spark may lose before their end."""

    def toLocalIterator(self) -> Iterator[Mapping[str, Any]]:  # noqa: N802 (Spark's name)
        yield from self.rows
        current_process().lose_reading()


def rows_of(frame: DataFrame) -> Sequence[Mapping[str, Any]]:
    """Return the rows in place of a ``DataFrame``."""
    return cast(Rows, frame).rows


class PlainFurtherChecks(AllFurtherChecks):
    """The further checks of a run of everything, with a lint of the cookies only."""

    @override
    def _lint(
        self, stack: ExitStack, ledgers: DataFrame, scanned: ScanResult, cookies: AbstractSet[BookieId]
    ) -> tuple[tuple[DataFrame, ...], LintCounts, str]:
        dangling, why_not = dangling_cookies(cookies, scanned)
        return (), LintCounts(dangling_cookies=tuple(dangling), cookies_not_judged=why_not), ""


class PlainReplicaRun(ReplicaRun):
    """A run whose task asks the bookies of the history."""

    @override
    def _ask(self, scan: LedgerScan, bookies: Bookies) -> DataFrame:
        process = cast(AuditProcess, self._context.spark)
        settings = TaskSettings("", 1, bookies.registered, SecurityFiles(), accepted=self._accepted)
        ledgers = [settled_row(row) for row in rows_of(scan.suspects) if row["error"] is None]

        async def ask() -> list[dict[str, Any]]:
            store = process.store()
            try:
                cluster = await open_cluster(store, ROOT)
                registrations = Registrations(store, cluster)

                async def registered() -> AbstractSet[BookieId]:
                    return (await registrations.list()).registered

                asker = Asker(
                    HeldEntriesTransport(process.held, process.registered),
                    LedgerStore(store, cluster, random.Random(1)),
                    registered,
                    ManualClock(turns=0),
                    accepted_entries({each: decision.lost for each, decision in self._accepted.items()}),
                    Decisions(store, cluster.root).get,
                )
                answers = await asker.ask_all(ledgers, settings.registered)
            finally:
                await store.close()
            return [*answer_rows(answers, settings).to_pylist()]

        with asyncio.Runner() as runner:
            rows = runner.run(ask())
        process.entry_findings = [row for row in rows if row["counts"] is None]
        return cast(DataFrame, FindingRows(rows))


def collected(answers: DataFrame) -> list[Mapping[str, Any]]:
    """Return the counts of the task."""
    return [row["counts"] for row in rows_of(answers) if row["counts"] is not None]


def ledgers_found(findings: DataFrame) -> DataFrame:
    """Return a row for each ledger with findings."""
    by_ledger: defaultdict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows_of(findings):
        by_ledger[row["ledger_id"]].append(row)
    return cast(DataFrame, FindingRows([_ledger(ledger_id, found) for ledger_id, found in by_ledger.items()]))


def _ledger(ledger_id: int, found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "ledger_id": ledger_id,
        "severity_rank": min(row["severity_rank"] for row in found),
        "missing": sorted({bookie for row in found for bookie in row["missing"]}),
        "bytes_estimate": sum(row["bytes_estimate"] or 0 for row in found),
        "found": found,
    }


def finding_sums(ledgers: DataFrame) -> FindingSums:
    """Sum up, as the function of the same name does in Spark."""
    by_bookie: dict[str, tuple[int, int]] = {}
    of_ledgers: Counter[int] = Counter()
    fragments: Counter[int] = Counter()
    for row in rows_of(ledgers):
        of_ledgers[row["severity_rank"]] += 1
        fragments.update(each["severity_rank"] for each in row["found"])
        for bookie in row["missing"]:
            count = sum(bookie in each["missing"] for each in row["found"])
            before = by_bookie.get(bookie, (0, 0))
            by_bookie[bookie] = before[0] + 1, before[1] + count
    ranks = sorted(of_ledgers.keys() | fragments.keys())
    counts = (SeverityCount(Severity(rank), of_ledgers[rank], fragments[rank], 0) for rank in ranks)
    return FindingSums(tuple(counts), by_bookie)


def worst_ledgers(ledgers: DataFrame, count: int) -> tuple[WorstLedger, ...]:
    """Return the worst ledgers."""
    worst = sorted(rows_of(ledgers), key=lambda row: (row["severity_rank"], -row["bytes_estimate"], row["ledger_id"]))
    return tuple(
        WorstLedger(row["ledger_id"], Severity(row["severity_rank"]), len(row["found"]), row["bytes_estimate"], ())
        for row in worst[:count]
    )


def to_mark(ledgers: DataFrame) -> Iterator[LedgerWithFindings]:
    """Yield the ledgers to mark, the worst first."""
    for row in sorted(rows_of(ledgers), key=lambda row: (row["severity_rank"], row["ledger_id"])):
        missing = tuple(map(BookieId, row["missing"]))
        yield LedgerWithFindings(LedgerId(row["ledger_id"]), missing, (), row["bytes_estimate"], row["severity_rank"])
    current_process().lose_reading()


def accepted_counts(accepted: DataFrame) -> tuple[int, int]:
    """Count ledgers and fragments."""
    rows = rows_of(accepted)
    return len({row["ledger_id"] for row in rows}), len(rows)


def unreadable_metadata(ledgers: DataFrame) -> DataFrame:
    """Return a finding for each unreadable ledger."""
    rows = [row for row in rows_of(ledgers) if row["error"] is not None]
    kind = FindingKind.UNREADABLE_METADATA.value
    return cast(DataFrame, FindingRows([{"kind": kind, "ledger_id": row["ledger_id"]} for row in rows]))


@dataclass(frozen=True, slots=True)
class _Plan:
    rules: PlacementRules

    def findings(self, rows: Iterable[Mapping[str, Any]], tally: PlacementTally) -> Iterator[dict[str, Any]]:
        """Judge each fragment with entries, as the check does in Spark for each different ensemble."""
        has_groups = bool(self.rules.topology.groups.names)
        ensembles: set[tuple[object, ...]] = set()
        for row in rows:
            if row["error"] is not None:
                continue
            groups = (row["bookie_groups"] or "") if has_groups else ""
            for number, fragment in enumerate(row["fragments"]):
                ends = [end for end in (fragment["last_entry_id"], row["last_entry_id"]) if end is not None]
                if ends and min(ends) < fragment["first_entry_id"]:
                    continue
                members = [BookieId(each) for each in fragment["members"]]
                verdict = self.rules.judge(members, row["write_quorum"], *parse_groups_text(groups))
                tally.fragments[verdict.spread] += 1
                tally.outside_fragments += verdict.is_outside
                key = tuple(members), row["write_quorum"], groups
                tally.ensembles[verdict.spread] += key not in ensembles
                ensembles.add(key)
                if verdict.spread in (Spread.MISPLACED, Spread.UNKNOWN, Spread.UNREADABLE_GROUPS):
                    is_misplaced = verdict.spread is Spread.MISPLACED
                    yield {
                        "kind": (FindingKind.MISPLACED if is_misplaced else FindingKind.UNKNOWN_PLACE).value,
                        "ledger_id": row["ledger_id"],
                        "fragment_index": number,
                        "severity_rank": Severity.MISPLACED.value if is_misplaced else None,
                        "missing": [],
                        "bytes_estimate": None,
                        "is_fixable": verdict.is_fixable,
                        "state": row["state"],
                        "detail": verdict.detail,
                    }


@contextmanager
def judged(
    self: PlacementPart, ledgers: DataFrame, tally: PlacementTally, *, is_reported: bool
) -> Iterator[JudgedPlacement]:
    """Judge rows, as ``PlacementPart.judged`` does with Spark."""
    process = cast(AuditProcess, self._context.spark)
    rows = list(_Plan(self._rules).findings(rows_of(ledgers), tally))
    process.placement_findings = rows
    misplaced = FindingRows([row for row in rows if row["kind"] == FindingKind.MISPLACED.value])
    unknown = FindingRows([row for row in rows if row["kind"] == FindingKind.UNKNOWN_PLACE.value])
    found = ledgers_found(cast(DataFrame, misplaced))
    ids = {row["ledger_id"] for row in misplaced.rows if row["is_fixable"] and row["state"] == "CLOSED"}
    fixable = _LastRows([{"ledger_id": each} for each in ids])
    sums = finding_sums(found)
    limit = self._settings.worst_ledgers_max
    frames = (cast(DataFrame, unknown), cast(DataFrame, fixable))
    yield JudgedPlacement(found, *frames, sums, worst_ledgers(found, limit))


def replacements() -> Iterator[tuple[object, str, object]]:
    """Yield what replaces operations of Spark: an object, a name in it, and the replacement."""
    yield run, "ReplicaRun", PlainReplicaRun
    yield run, "AllFurtherChecks", PlainFurtherChecks
    yield PlacementPart, "judged", judged
    yield placement_run, "unreadable_metadata", unreadable_metadata
    for replacement in (ledgers_found, finding_sums, worst_ledgers, to_mark, accepted_counts, unreadable_metadata):
        yield replica_run, replacement.__name__, replacement
    yield replica_run, "_collected", collected
    yield RunReport, "write_findings", lambda *_: None
    yield RunReport, "note_marks", note_marks


def note_marks(self: RunReport, marks: Sequence[Marking], now_ms: int) -> None:
    """Remember the marks."""
    current_process().marked.extend(marks)
