"""A random history of a cluster and its audits: what each run finds and marks must equal a plain reference.

A history is a list of steps: changes of the cluster, and audits. Each step has randomness of its own, so a step can be
left out without any effect on the choices of the others. If a history fails, ``shortest`` leaves out as many steps as
possible.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from typing_extensions import override

from bookie.metadata.runs.check_times import CheckKind
from bookie.model.ids import BookieId, LedgerId
from bookie.model.run import RunKind
from bookie.model.severity import Severity
from bookie.model.spread import PlacementPolicy
from bookie.runtime.clock import Clock
from spark_jobs.report.counts import PlacementCounts, PublishOutcome
from spark_jobs.runs.reading.one_reading import READINGS_MAX
from spark_jobs.runs.run import AuditResult
from tests.simulation.audits.cluster import AuditedCluster, Seen
from tests.simulation.audits.holding import ReplicaJudge
from tests.simulation.audits.placing import Placed, PlacementJudge
from tests.simulation.audits.process import QUIET, AuditProcess, Disturbance, settings_of

ROUNDS: Final = 12
_TRIALS_MAX: Final = 400
"""Most histories that ``shortest`` runs."""

CHANGES: Final[Mapping[str, int]] = {
    "create": 4,
    "create_again": 2,
    "close": 3,
    "change_ensemble": 2,
    "delete": 2,
    "damage": 1,
    "mend": 1,
    "deny": 1,
    "allow": 1,
    "lose": 3,
    "bring_back": 3,
    "visit": 1,
    "join": 1,
    "decommission": 1,
    "flip": 1,
    "drain": 1,
    "end_drain": 1,
    "mark": 2,
    "damage_mark": 1,
    "mend_mark": 1,
    "disable": 1,
    "enable": 2,
    "begin_repair": 4,
    "install": 4,
    "finish_repair": 4,
    "accept": 2,
    "damage_acceptance": 1,
    "lose_entries": 3,
    "damage_entries": 1,
    "find_entries": 1,
    "silence": 1,
    "hear": 1,
    "accept_denied": 2,
    "place": 2,
    "damage_places": 1,
    "wait": 2,
    "take_snapshot": 1,
    "back_up": 1,
    "restore": 1,
}
"""The changes of a cluster, and how often each is tried."""
AUDITS: Final[Mapping[str, int]] = {
    "incremental": 10,
    "full": 3,
    "from_snapshot": 3,
    "dry": 2,
    "disturbed": 8,
    "killed": 5,
    "deposed": 2,
    "faulty": 4,
    "two_at_once": 3,
    "limited": 2,
    "placement": 2,
    "replicas": 2,
    "everything": 2,
    "other_disturbed": 2,
}
"""The audits, and how often each is made."""
OTHER_AUDITS: Final[Mapping[str, int]] = {
    "placement": 3,
    "replicas": 3,
    "everything": 2,
    "other_disturbed": 2,
    "full": 1,
}
"""The audits of histories that are about placement and entries."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a history."""

    number: int
    what: str

    @property
    def is_audit(self) -> bool:
        return self.what in AUDITS


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a history."""

    problem: str = ""
    """The first difference from the reference; empty: there is none."""
    log: Sequence[str] = ()
    counts: Mapping[str, int] = field(default_factory=dict)


class SkewedClock(Clock):
    """The clock of an auditor's machine, which may be wrong."""

    def __init__(self, true: Clock, ahead_s: float) -> None:
        self._true = true
        self._ahead_s = ahead_s

    @override
    def monotonic_s(self) -> float:
        return self._true.monotonic_s()

    @override
    def epoch_ms(self) -> int:
        return self._true.epoch_ms() + int(self._ahead_s * 1000)

    @override
    async def sleep(self, seconds: float) -> None:
        await self._true.sleep(seconds)


def steps_of(seed: int, rounds: int = ROUNDS, audits: Mapping[str, int] = AUDITS) -> tuple[Step, ...]:
    """Return the steps of a history: in each round some changes, and an audit."""
    rng = random.Random(f"{seed} steps")
    names: list[str] = []
    for _ in range(rounds):
        names += rng.choices(list(CHANGES), list(CHANGES.values()), k=rng.randrange(9))
        names += rng.choices(list(audits), list(audits.values()))
    names.append("incremental")
    return tuple(Step(number, name) for number, name in enumerate(names))


def play(seed: int, steps: Sequence[Step]) -> Verdict:
    """Run a history. Call it inside ``without_spark``."""
    with tempfile.TemporaryDirectory(prefix="audits-") as directory, asyncio.Runner() as runner:
        return _History(seed, Path(directory), runner).play(steps)


def shortest(seed: int, steps: Sequence[Step]) -> tuple[Sequence[Step], Verdict]:
    """Leave out steps of a failing history as long as it fails; return the rest, and its verdict."""
    kept, verdict = tuple(steps), play(seed, steps)
    assert verdict.problem
    trials, size = 0, len(kept) // 2
    while size and trials < _TRIALS_MAX:
        start = 0
        while start < len(kept) and trials < _TRIALS_MAX:
            fewer = kept[:start] + kept[start + size :]
            tried = play(seed, fewer)
            trials += 1
            if tried.problem:
                kept, verdict = fewer, tried
            else:
                start += size
        size //= 2
    return kept, verdict


def failure_text(seed: int, rounds: int = ROUNDS, audits: Mapping[str, int] = AUDITS) -> str:
    """Run the history of a seed; return why it fails, with its shortest form, or an empty text."""
    verdict = play(seed, steps_of(seed, rounds, audits))
    if not verdict.problem:
        return ""
    steps, small = shortest(seed, steps_of(seed, rounds, audits))
    numbers = [step.number for step in steps]
    lines = [f"seed {seed}: {verdict.problem}", f"steps {numbers} suffice: {small.problem}", *small.log]
    return "\n".join(lines)


_FragmentId = tuple[LedgerId, int]


class _WrongError(AssertionError):
    pass


class _History:
    def __init__(self, seed: int, directory: Path, runner: asyncio.Runner) -> None:
        self._seed = seed
        self._directory = directory
        self._runner = runner
        self._cluster = AuditedCluster(directory, random.Random(f"{seed} cluster"))
        self._counts: Counter[str] = Counter()

    @property
    def _log(self) -> list[str]:
        return self._cluster.changes

    def play(self, steps: Sequence[Step]) -> Verdict:
        self._runner.run(self._cluster.begin(random.Random(f"{self._seed} begin")))
        problem = ""
        try:
            for step in steps:
                rng = random.Random(f"{self._seed} {step.number}")
                if step.is_audit:
                    self._log.append(f"-- {step.number}: {step.what} at {self._cluster.clock.epoch_ms()}")
                    self._cluster.clock.now_s += rng.choice([10, 600, 3_600, 3_600, 20_000])
                    getattr(self, f"_{step.what}")(rng)
                else:
                    self._runner.run(self._cluster.change(step.what, rng))
                self._counts[step.what] += 1
        except _WrongError as error:
            problem = str(error)
        return Verdict(problem, list(self._log), self._counts)

    # Audits

    def _incremental(self, rng: random.Random) -> None:
        self._quiet(rng, incremental=True)

    def _full(self, rng: random.Random) -> None:
        self._quiet(rng)

    def _from_snapshot(self, rng: random.Random) -> None:
        if self._cluster.snapshot is None:
            return
        before = self._seen()
        process = self._process(rng)
        result = self._run(process, snapshot=self._cluster.snapshot.file)
        if self._is_held(before, result):
            return
        self._complete(result)
        expected = before.lacking()
        unseen = self._moved_since_snapshot(before)
        found = {ledger_id: each.missing for ledger_id, each in process.found.items()}
        for ledger_id, each in expected.items():
            self._check(
                ledger_id in unseen or found.get(ledger_id) == each.missing,
                f"ledger {ledger_id} lacks {set(each.missing)}, found {found.get(ledger_id)} from a snapshot",
            )
        wrong = found.keys() - expected.keys()
        self._check(not wrong, f"a run from a snapshot found {wrong}, which lack nothing")
        seen = self._seen()
        marked = {ledger_id: each for ledger_id, each in expected.items() if ledger_id not in unseen}
        self._check_marks(before, seen, process, marked)
        self._check(seen.audited <= before.audited, "a run from a snapshot counts as the audit of a loss")

    def _dry(self, rng: random.Random) -> None:
        before = self._seen()
        process = self._process(rng)
        result = self._run(process, is_dry_run=True)
        if self._is_held(before, result):
            return
        self._complete(result)
        self._check_found(before, process)
        after = self._seen()
        self._check(after == before, "a dry run changed the cluster")

    def _limited(self, rng: random.Random) -> None:
        """A run with a limit marks the worst, and the next one continues."""
        before = self._seen()
        process = self._process(rng)
        process.readings_lost = rng.randrange(READINGS_MAX)
        result = self._run(process, marks_max=1)
        if self._is_held(before, result):
            return
        self._complete(result)
        self._check_found(before, process)
        after = self._seen()
        new = [
            ledger_id for ledger_id in after.marks if not after.marks[ledger_id] <= before.marks.get(ledger_id, set())
        ]
        self._check(len(new) <= 1, f"a run with a limit of 1 marked {new}")

    def _disturbed(self, rng: random.Random) -> None:
        result = self._run(self._process(rng, Disturbance(change=rng.choice([0.01, 0.05, 0.1]))), **_any_kind(rng))
        self._check(result is not None, "changes of the cluster ended a run")

    def _killed(self, rng: random.Random) -> None:
        self._run(self._process(rng, Disturbance(change=0.02, kill=rng.choice([0.005, 0.02]))), **_any_kind(rng))

    def _deposed(self, rng: random.Random) -> None:
        self._run(self._process(rng, Disturbance(change=0.03, stop=0.02)), **_any_kind(rng))

    def _faulty(self, rng: random.Random) -> None:
        self._run(self._process(rng, Disturbance(change=0.03, fault=rng.choice([0.005, 0.02]))), **_any_kind(rng))

    def _two_at_once(self, rng: random.Random) -> None:
        """Another auditor makes a whole run at a request of this one, which then continues or ends at its gate."""
        other = self._process(rng)
        at, is_ended = rng.randrange(60), rng.random() < 0.5
        requests = 0

        async def other_run() -> None:
            nonlocal requests
            requests += 1
            if requests - 1 != at:
                return
            self._log.append("   another auditor begins a run")
            _in_thread(lambda: self._run(other, **_any_kind(rng)))
            process.is_deposed = is_ended

        process = self._process(rng, Disturbance(change=1.0), other_run)
        self._run(process, **_any_kind(rng))

    def _placement(self, rng: random.Random) -> None:
        """Judge all ensembles, and perhaps mark those that a replacement would improve."""
        before = self._seen()
        policy = _any_policy(rng)
        is_dry_run, is_marking = rng.random() < 0.2, rng.random() < 0.7
        process = self._process(rng)
        process.readings_lost = rng.choice([0, 0, 0, 1])
        changed = {"placement_policy": policy, "mark_misplaced": is_marking, "is_dry_run": is_dry_run}
        result = self._run_of_kind(process, RunKind.PLACEMENT, changed)
        after = self._seen()
        if result is None:
            self._check(
                before.places is None or not before.places.locations, "a placement check ended without a result"
            )
        if result is None or result.summary.held_because is not None:
            self._check_no_mark_changed(before, after, "the run did not judge")
            return
        counts = result.summary.placement
        assert counts is not None
        faults, is_complete = self._check_placed(before, process, policy, counts)
        self._check(result.summary.is_complete == is_complete, f"incomplete: {result.summary.incomplete_reasons}")
        due = _fixable(before, faults) if is_marking and not is_dry_run and not before.is_disabled else frozenset()
        self._counts["placement marks"] += len(due - before.marks.keys())
        self._check_new_marks(before, after, {ledger_id: frozenset() for ledger_id in due})
        self._check_recorded(before, after, result, CheckKind.PLACEMENT, is_due=is_complete and not is_dry_run)

    def _replicas(self, rng: random.Random) -> None:
        """Ask all bookies for their entries."""
        before = self._seen()
        is_dry_run, marks_max = rng.random() < 0.2, rng.choice([None, None, None, 1])
        process = self._process(rng)
        process.readings_lost = rng.choice([0, 0, 0, 1])
        result = self._run_of_kind(process, RunKind.REPLICAS, {"marks_max": marks_max, "is_dry_run": is_dry_run})
        after = self._seen()
        self._check(result is not None, "a replicas check ended without a result")
        assert result is not None
        if result.summary.held_because is not None:
            self._check_no_mark_changed(before, after, result.summary.held_because)
            return
        judge = ReplicaJudge(self._cluster.held, before.registered)
        due: dict[LedgerId, frozenset[BookieId]] = {}
        ranks: dict[LedgerId, Severity] = {}
        expected: dict[tuple[LedgerId, int], tuple[object, ...]] = {}
        unknown: Counter[BookieId] = Counter()
        for ledger_id, metadata in before.ledgers.items():
            if metadata is None:
                continue
            unknown.update(judge.unknown(metadata, ledger_id))
            for each in judge.lacking(metadata, ledger_id):
                is_accepted = judge.is_accepted(metadata, ledger_id, each, before.accepted.get(ledger_id))
                kind = "LOSS_ACCEPTED" if is_accepted else "DAMAGED_ENTRIES" if each.is_damaged else "MISSING_ENTRIES"
                rank = Severity.LOST if is_accepted else each.severity
                expected[ledger_id, each.number] = kind, rank.label, list(each.positions), each.missing
                if not is_accepted:
                    due[ledger_id] = due.get(ledger_id, frozenset()) | each.missing
                    ranks[ledger_id] = min(rank, ranks.get(ledger_id, rank))
        found = {(row["ledger_id"], row["fragment_index"]): _lacks(row) for row in process.entry_findings}
        for key in sorted(expected.keys() | found.keys()):
            is_same = expected.get(key) == found.get(key)
            self._check(is_same, f"entries of {key}: lacks {expected.get(key)}, and the run found {found.get(key)}")
        counts = result.summary.replicas
        assert counts is not None
        seen = {each.bookie_id: each.ledgers for each in counts.unknown}
        self._check(seen == dict(unknown), f"unknown answers {seen}, expected {dict(unknown)}")
        self._check(result.summary.is_complete == (not unknown), f"incomplete: {result.summary.incomplete_reasons}")
        levels = {count.severity: count.ledgers for count in result.summary.severities}
        self._check(levels == dict(Counter(ranks.values())), f"counted {levels}, expected {ranks}")
        if is_dry_run or before.is_disabled:
            self._check_new_marks(before, after, {})
        elif marks_max is None:
            self._check_new_marks(before, after, due)
        else:
            self._check_limited(before, after, due, ranks)
        is_recorded = (
            not (unknown or is_dry_run or (before.is_disabled and due)) and not result.summary.published.is_limited
        )
        self._check_recorded(before, after, result, CheckKind.REPLICAS, is_due=is_recorded)

    def _everything(self, rng: random.Random) -> None:
        """The checks of bookies and of placement with one reading."""
        before = self._seen()
        policy, is_marking = _any_policy(rng), rng.random() < 0.7
        process = self._process(rng)
        process.readings_lost = rng.choice([0, 0, 0, 1])
        changed = {"placement_policy": policy, "mark_misplaced": is_marking, "with_inventory": False}
        result = self._run_of_kind(process, RunKind.EVERYTHING, changed)
        if self._is_held(before, result):
            return
        after = self._seen()
        self._check(result is not None, "a run of everything ended without a result")
        assert result is not None
        summary = result.summary
        self._check(not summary.problems, f"incomplete: {summary.problems}")
        self._check_found(before, process)
        counts, faults, is_complete = summary.placement, dict[_FragmentId, Placed](), False
        has_places = before.places is not None and bool(before.places.locations)
        self._check((counts is not None) == has_places, f"places {before.places}, and the result is {counts}")
        if counts is not None:
            found, is_complete = self._check_placed(before, process, policy, counts)
            faults = dict(found)
        done = [part.check for part in summary.parts if not part.problem]
        expected = ["bookies", "metadata", *["placement"] * is_complete]
        self._check(done == expected, f"the complete checks are {done}, not {expected}")
        assert summary.lint is not None
        named = {member for metadata in before.ledgers.values() if metadata for member in metadata.members()}
        dangling = set() if self._unreadable(before) else before.cookies - before.registered - named
        seen = set(summary.lint.dangling_cookies)
        self._check(seen == dangling, f"the dangling cookies are {seen}, not {dangling}")
        due = _fixable(before, faults) if is_marking and not before.is_disabled else frozenset()
        self._check_marks(before, after, process, before.lacking(), due)
        left = due - after.marks.keys() - before.unreadable_marks
        self._check(not left, f"the misplaced ledgers {left} were not marked")
        self._check_recorded(before, after, result, CheckKind.PLACEMENT, is_due=is_complete)
        if before.is_disabled:
            return
        self._check_withdrawn(after)
        lost = before.lost - process.waiting
        self._check(lost <= after.audited, f"the loss of {lost - after.audited} does not count as audited")

    def _other_disturbed(self, rng: random.Random) -> None:
        """Whatever happens during the run, it marks only copies that were missing, or an improvement."""
        disturbance = Disturbance(
            change=rng.choice([0.01, 0.05, 0.1]),
            kill=rng.choice([0, 0, 0.01]),
            fault=rng.choice([0, 0, 0.02]),
            stop=rng.choice([0, 0, 0.02]),
        )
        self._cluster.held.begin()
        process = self._process(rng, disturbance)
        if rng.random() < 0.5:
            changed = {"placement_policy": _any_policy(rng), "mark_misplaced": True}
            self._run_of_kind(process, RunKind.PLACEMENT, changed)
            named = [marking for marking in process.marked if marking[1]]
            self._check(not named, f"a placement check marked missing bookies: {named}")
            return
        result = self._run_of_kind(process, RunKind.REPLICAS, {})
        is_changed_only = not (disturbance.kill or disturbance.fault or disturbance.stop)
        self._check(result is not None or not is_changed_only, "changes of the cluster ended a replicas check")
        for ledger_id, names in process.marked:
            wrong = [bookie for bookie in names if (bookie, ledger_id) not in self._cluster.held.ever]
            self._check(not wrong, f"ledger {ledger_id} was marked with {wrong}, which never lacked an entry")

    # Parts

    def _check_placed(
        self, before: Seen, process: AuditProcess, policy: PlacementPolicy, counts: PlacementCounts
    ) -> tuple[Mapping[_FragmentId, Placed], bool]:
        """Compare a placement check with the reference; return the findings, and whether it judged everything."""
        assert before.places is not None
        judge = PlacementJudge(
            policy, before.places, before.cookies | before.registered, before.writable, before.staying
        )
        found = {(row["ledger_id"], row["fragment_index"]): _placed(row) for row in process.placement_findings}
        placed = {
            (ledger_id, each.number): each
            for ledger_id, metadata in before.ledgers.items()
            if metadata is not None
            for each in judge.placed(metadata)
        }
        faults = {key: each for key, each in placed.items() if each.verdict in _PLACEMENT_FAULTS}
        self._counts["misplaced"] += len(faults)
        for key in sorted(faults.keys() | found.keys()):
            expected = faults.get(key)
            shown = expected and (
                "MISPLACED" if expected.verdict == "misplaced" else "UNKNOWN_PLACE",
                expected.is_fixable,
            )
            self._check(shown == found.get(key), f"placement of {key}: {expected}, and the run found {found.get(key)}")
        verdicts = Counter(each.verdict for each in placed.values())
        self._check(
            (
                counts.fragments,
                counts.misplaced_fragments,
                counts.as_good_as_possible_fragments,
                counts.unknown_fragments,
                counts.unreadable_groups_fragments,
                counts.outside_groups_fragments,
                counts.misplaced_ledgers,
            )
            == (
                len(placed),
                verdicts["misplaced"],
                verdicts["as good as possible"],
                verdicts["unknown"],
                verdicts["unreadable groups"],
                sum(each.is_outside for each in placed.values()),
                len({ledger_id for (ledger_id, _), each in placed.items() if each.verdict == "misplaced"}),
            ),
            f"counted {counts}, expected {verdicts}",
        )
        return faults, not (verdicts["unknown"] or verdicts["unreadable groups"])

    def _check_new_marks(self, before: Seen, after: Seen, due: Mapping[LedgerId, AbstractSet[BookieId]]) -> None:
        """Only these marks were added, and none was changed in another way."""
        for ledger_id in before.marks.keys() | after.marks.keys() | due.keys():
            if ledger_id in before.unreadable_marks:
                continue
            marked = before.marks.get(ledger_id, frozenset()) | due.get(ledger_id, frozenset())
            is_marked = ledger_id in before.marks or ledger_id in due
            is_right = (ledger_id in after.marks) == is_marked and after.marks.get(ledger_id, frozenset()) == marked
            self._check(
                is_right, f"the mark of ledger {ledger_id} is {after.marks.get(ledger_id)}, due is {due.get(ledger_id)}"
            )
        self._check(before.accepted == after.accepted, "a run changed accepted losses")

    def _check_limited(
        self,
        before: Seen,
        after: Seen,
        due: Mapping[LedgerId, AbstractSet[BookieId]],
        ranks: Mapping[LedgerId, Severity],
    ) -> None:
        """At most one mark was added, that of a worst ledger."""
        new = {
            each
            for each in due
            if not due[each] <= before.marks.get(each, frozenset()) and each not in before.unreadable_marks
        }
        done = {each for each in new if due[each] <= after.marks.get(each, frozenset())}
        self._check(len(done) <= 1, f"a run with a limit of 1 marked {done}")
        self._check_new_marks(before, after, {each: due[each] for each in due if each not in new or each in done})
        for each in done:
            worst = min(ranks[other] for other in new)
            self._check(
                ranks[each] is worst, f"ledger {each} was marked first, and {worst} is worse than {ranks[each]}"
            )

    def _check_recorded(self, before: Seen, after: Seen, result: AuditResult, kind: CheckKind, *, is_due: bool) -> None:
        expected = before.check_times[kind]
        if is_due and result.summary.published.outcome.is_all:
            expected = result.summary.finished_ms
        self._check(
            after.check_times[kind] == expected,
            f"the check of {kind} is recorded at {after.check_times[kind]}, not {expected}",
        )

    def _quiet(self, rng: random.Random, *, incremental: bool = False) -> None:
        """Nothing else changes during this run, so its result is known."""
        before = self._seen()
        process = self._process(rng)
        process.readings_lost = rng.choice([0, 0, 0, 1])
        result = self._run(process, incremental=incremental)
        if self._is_held(before, result):
            return
        summary = self._complete(result).summary
        self._check_found(before, process)
        after = self._seen()
        counts, unreadable = summary.counts, self._unreadable(before)
        self._check(counts.ledgers == len(before.ledgers), f"counted {counts.ledgers} of {len(before.ledgers)} ledgers")
        # A run that carries ledgers over does not see that a closed ledger on live bookies has become unreadable.
        is_seen = (
            counts.unreadable <= len(unreadable) if summary.image.carried else counts.unreadable == len(unreadable)
        )
        self._check(is_seen, f"counted {counts.unreadable} unreadable ledgers, of {unreadable}")
        self._check_marks(before, after, process, before.lacking())
        if before.is_disabled:
            return
        self._check_withdrawn(after)
        due = before.lost - process.waiting
        self._check(due <= after.audited, f"the loss of {due - after.audited} does not count as audited")
        if summary.published.outcome is PublishOutcome.PUBLISHED:
            for ledger_id, decision in before.accepted.items():
                if not decision.is_valid(before.registered):
                    self._check(
                        ledger_id not in after.accepted, f"the accepted loss of ledger {ledger_id} was not withdrawn"
                    )

    def _process(self, rng: random.Random, disturbance: Disturbance = QUIET, change: object = None) -> AuditProcess:
        async def any_change() -> None:
            name = rng.choices(list(CHANGES), list(CHANGES.values()))[0]
            if name not in ("restore", "wait"):
                await self._cluster.change(name, rng)

        ahead_s = rng.choice([0.0] * 8 + [-30.0, 30.0, -20_000.0, 20_000.0])
        clock = SkewedClock(self._cluster.clock, ahead_s)
        process = AuditProcess(self._cluster.cell, clock, rng, disturbance, change or any_change)  # type: ignore[arg-type]
        process.held, process.registered = self._cluster.held, self._cluster.registered
        return process

    def _run(self, process: AuditProcess, **changed: object) -> AuditResult | None:
        return self._run_of_kind(process, RunKind.BOOKIES, changed)

    def _run_of_kind(self, process: AuditProcess, kind: RunKind, changed: Mapping[str, object]) -> AuditResult | None:
        share_max = process.rng.choice([0.95, 0.95, 0.95, 0.4])
        settings = settings_of(self._directory / "reports", missing_share_max=share_max, **changed)
        self._log.append(f"   {kind.value} run at {process.clock.epoch_ms()} with {changed}")
        result = process.audit(kind, settings)
        self._log.extend(f"   {change}" for change in process.changes)
        self._counts["runs"] += 1
        if result is not None:
            summary = result.summary
            self._counts["complete"] += summary.is_complete
            self._counts["carried"] += summary.image.carried > 0
            self._counts["image marks"] += summary.image.marked > 0
            self._counts["driver marks"] += summary.driver_marks.marked > 0
            self._counts["snapshots"] += summary.snapshot is not None and summary.snapshot.ledgers > 0
            self._counts["withdrawn"] += sum(summary.published.withdrawn.values())
            self._counts["returned"] += summary.accepted.ledgers_returned
            self._log.append(
                f"   result: {summary.published}, problems {summary.problems}, held {summary.held_because}, carried "
                f"{summary.image.carried} {summary.image.carried_problem}"
            )
        return result

    def _seen(self) -> Seen:
        return self._runner.run(self._cluster.seen())

    def _is_held(self, before: Seen, result: AuditResult | None) -> bool:
        """Return whether the brake held; then the run changed nothing."""
        if result is None or result.summary.held_because is None:
            return False
        self._check_no_mark_changed(before, self._seen(), result.summary.held_because)
        return True

    def _complete(self, result: AuditResult | None) -> AuditResult:
        self._check(result is not None, "a run that nothing disturbed failed")
        assert result is not None
        self._check(result.summary.is_complete, f"incomplete: {result.summary.incomplete_reasons}")
        self._check(not result.report_problem, f"no report: {result.report_problem}")
        return result

    def _check_found(self, before: Seen, process: AuditProcess) -> None:
        expected = {ledger_id: set(each.missing) for ledger_id, each in before.lacking().items()}
        found = {ledger_id: set(each.missing) for ledger_id, each in process.found.items()}
        for ledger_id in sorted(expected.keys() | found):
            lacks, reported = expected.get(ledger_id), found.get(ledger_id)
            self._check(lacks == reported, f"ledger {ledger_id} lacks {lacks}, and the run found {reported}")

    def _check_marks(
        self,
        before: Seen,
        after: Seen,
        process: AuditProcess,
        expected: Mapping[LedgerId, object],
        misplaced: AbstractSet[LedgerId] = frozenset(),
    ) -> None:
        if before.is_disabled:
            self._check_no_mark_changed(before, after, "auto-recovery is disabled")
            return
        lacking = before.lacking()
        for ledger_id in set(expected) - before.unreadable_marks:
            due = lacking[ledger_id].missing - process.waiting
            self._check(
                due <= after.marks.get(ledger_id, frozenset()),
                f"ledger {ledger_id} lacks {set(due)}, and its mark is {after.marks.get(ledger_id)}",
            )
        returned = {
            ledger_id: frozenset(decision.bookies)
            for ledger_id, decision in before.accepted.items()
            if not decision.is_valid(before.registered)
        }
        for ledger_id, names in after.marks.items():
            allowed = before.marks.get(ledger_id, frozenset()) | returned.get(ledger_id, frozenset())
            if ledger_id in lacking:
                allowed |= lacking[ledger_id].missing
            is_known = (
                ledger_id in before.marks or ledger_id in lacking or ledger_id in returned or ledger_id in misplaced
            )
            self._check(
                is_known and names <= allowed, f"ledger {ledger_id} was marked with {set(names)}, without a reason"
            )
        for ledger_id, names in before.marks.items():
            if ledger_id in after.marks:
                self._check(names <= after.marks[ledger_id], f"the mark of ledger {ledger_id} lost a bookie")
                continue
            metadata = before.ledgers.get(ledger_id)
            is_deleted = ledger_id not in before.ledgers
            is_replaced = (
                metadata is not None
                and bool(names)
                and names.isdisjoint(metadata.members())
                and metadata.members() <= before.staying
            )
            self._check(is_deleted or is_replaced, f"the mark of ledger {ledger_id} was withdrawn without a reason")

    def _check_no_mark_changed(self, before: Seen, after: Seen, why: str) -> None:
        is_same = (before.marks, before.accepted) == (after.marks, after.accepted)
        self._check(is_same, f"a run changed marks or accepted losses, although {why}")

    def _check_withdrawn(self, after: Seen) -> None:
        left = after.marks.keys() - after.ledgers.keys() - after.locked
        self._check(not left, f"marks of the deleted ledgers {left} stay")

    def _unreadable(self, seen: Seen) -> list[LedgerId]:
        return [ledger_id for ledger_id, metadata in seen.ledgers.items() if metadata is None]

    def _moved_since_snapshot(self, seen: Seen) -> frozenset[LedgerId]:
        """Return the ledgers that a run from the snapshot may not find: then healthy, and moved since."""
        snapshot = self._cluster.snapshot
        assert snapshot is not None
        return frozenset(ledger_id for ledger_id, metadata in snapshot.closed() if metadata.members() <= seen.staying)

    def _check(self, is_right: bool, problem: str) -> None:
        if not is_right:
            raise _WrongError(problem)


def _fixable(before: Seen, faults: Mapping[_FragmentId, Placed]) -> frozenset[LedgerId]:
    """Return the closed ledgers that a replacement would improve."""
    return frozenset(
        ledger_id for (ledger_id, _), each in faults.items() if each.is_fixable and before.is_closed(ledger_id)
    )


_PLACEMENT_FAULTS: Final = ("misplaced", "unknown", "unreadable groups")


def _any_policy(rng: random.Random) -> PlacementPolicy:
    racks, zones, regions = rng.choice([(2, 1, 1), (2, 1, 1), (3, 1, 1), (2, 2, 1), (2, 1, 2)])
    return PlacementPolicy(racks, zones, regions, is_strict=rng.random() < 0.3)


def _placed(row: Mapping[str, Any]) -> tuple[str, bool]:
    return row["kind"], row["is_fixable"]


def _lacks(row: Mapping[str, Any]) -> tuple[object, ...]:
    return row["kind"], row["severity"], row["missing_positions"], frozenset(row["missing"])


def _any_kind(rng: random.Random) -> dict[str, object]:
    return {"incremental": rng.random() < 0.8}


def _in_thread(work: object) -> None:
    thread = threading.Thread(target=work)  # type: ignore[arg-type]
    thread.start()
    thread.join()
