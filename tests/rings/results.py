"""Read the reports of pytest's processes and make a summary of the run. Pure functions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tests.rings.plan import OVER_BUDGET, Ring

SLOWEST: Final = 15
"""The number of slowest tests that the summary lists."""
_REASON_LINES_MAX: Final = 12
_ENDED_WELL: Final = (0, 1, 5)
"""The exit codes of pytest for: all passed, some failed, none selected (all tests of the files have other marks)."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed test, or a failed collection of a file."""

    test: str
    when: str
    """``setup``, ``call``, ``teardown`` or ``collect``."""
    reason: str
    """The place and the message of the failure, limited to a few lines."""


@dataclass(slots=True)
class PartResult:
    """The result of one process."""

    name: str
    ring: str
    wall_s: float = 0.0
    cpu_s: float = 0.0
    """The CPU time of the process and of every child that was waited for. Children that outlived their parent are
    missing."""
    exit_code: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    """The seconds of setup, call and teardown together, by test."""
    outcomes: dict[str, str] = field(default_factory=dict)
    """``passed``, ``failed`` or ``skipped``, by test."""
    skips: dict[str, str] = field(default_factory=dict)
    """The reason for the skip, by test."""
    failures: list[Failure] = field(default_factory=list)

    def count(self, outcome: str) -> int:
        """Return how many tests had this outcome."""
        return sum(found == outcome for found in self.outcomes.values())

    @property
    def is_broken(self) -> bool:
        """Whether pytest itself failed, which the outcomes of tests do not show."""
        return self.exit_code not in _ENDED_WELL or (self.exit_code == 1 and not self.failures)

    @property
    def has_failed(self) -> bool:
        """Whether the run must fail."""
        return self.is_broken or bool(self.failures)


def take_report(result: PartResult, lines: Iterable[str]) -> None:
    """Add the reports of tests in these lines of pytest's report log to ``result``, and ignore other lines."""
    for line in lines:
        report: Mapping[str, Any] = json.loads(line)
        match report.get("$report_type"):
            case "TestReport":
                _take_test(result, report)
            case "CollectReport" if report["outcome"] == "failed":
                result.failures.append(Failure(report["nodeid"] or result.name, "collect", _reason(report)))


def _take_test(result: PartResult, report: Mapping[str, Any]) -> None:
    test, outcome = report["nodeid"], report["outcome"]
    result.seconds[test] = result.seconds.get(test, 0.0) + report["duration"]
    if outcome == "failed":
        result.failures.append(Failure(test, report["when"], _reason(report)))
    if outcome == "skipped":
        result.skips[test] = str(report["longrepr"][-1])
    if outcome != "passed" or report["when"] == "call":
        before = result.outcomes.get(test)
        result.outcomes[test] = "failed" if "failed" in (before, outcome) else outcome


def _reason(report: Mapping[str, Any]) -> str:
    """Return the crash line with its message, or else the last lines of the text."""
    shown = report.get("longrepr")
    if not isinstance(shown, Mapping):
        return "\n".join(str(shown).splitlines()[-_REASON_LINES_MAX:])
    crash = shown.get("reprcrash")
    if not isinstance(crash, Mapping):
        return "\n".join(str(shown).splitlines()[-_REASON_LINES_MAX:])
    message = "\n".join(str(crash["message"]).splitlines()[:_REASON_LINES_MAX])
    return f"{crash['path']}:{crash['lineno']}: {message}"


@dataclass(frozen=True, slots=True)
class RingTotal:
    """The total of a ring over its processes."""

    ring: Ring
    wall_s: float
    cpu_s: float
    passed: int
    skipped: int
    failed: int

    @property
    def is_over_budget(self) -> bool:
        """Whether its time is more than ``OVER_BUDGET`` times its budget."""
        return self.wall_s > OVER_BUDGET * self.ring.budget_s


def totals(rings: Sequence[Ring], results: Sequence[PartResult]) -> Sequence[RingTotal]:
    """Return one total for each ring of the run, in the order of ``rings``."""
    found = []
    for ring in rings:
        own = [result for result in results if result.ring == ring.name]
        if own:
            counts = [sum(each.count(outcome) for each in own) for outcome in ("passed", "skipped", "failed")]
            found.append(RingTotal(ring, sum(e.wall_s for e in own), sum(e.cpu_s for e in own), *counts))
    return found


def table(ring_totals: Sequence[RingTotal]) -> Sequence[str]:
    """Return the time of each ring, as lines of text."""
    lines = [f"{'ring':<12} {'wall s':>7} {'CPU s':>7} {'budget s':>8} {'passed':>7} {'skipped':>7} {'failed':>6}"]
    for total in ring_totals:
        numbers = f"{total.wall_s:7.0f} {total.cpu_s:7.0f} {total.ring.budget_s:8.0f}"
        lines.append(f"{total.ring.name:<12} {numbers} {total.passed:7} {total.skipped:7} {total.failed:6}")
    return lines


def slowest(results: Sequence[PartResult], count: int = SLOWEST) -> Sequence[str]:
    """Return the slowest tests, as lines of text."""
    timed = sorted(((s, test) for result in results for test, s in result.seconds.items()), reverse=True)
    return [f"{seconds:7.1f} s  {test}" for seconds, test in timed[:count]]


def over_budget(ring_totals: Sequence[RingTotal]) -> Sequence[str]:
    """Return one sentence for each ring over its budget."""
    return [
        f"ring {total.ring.name} took {total.wall_s:.0f} s, more than {OVER_BUDGET:g} times its budget of "
        f"{total.ring.budget_s:.0f} s: make its slowest tests faster, or raise the budget in tests/rings/rings.toml "
        "with a reason"
        for total in ring_totals
        if total.is_over_budget
    ]


def skip_reasons(results: Sequence[PartResult]) -> Sequence[str]:
    """Return the reasons of skipped tests, as lines of text, each with its number of tests."""
    counts: dict[str, int] = {}
    for result in results:
        for reason in result.skips.values():
            counts[reason] = counts.get(reason, 0) + 1
    return [f"{count:5} skipped: {reason}" for reason, count in sorted(counts.items())]


def closing_line(results: Sequence[PartResult], wall_s: float) -> str:
    """Return the closing line of pytest for the whole run."""
    failed, passed, skipped = (sum(each.count(name) for each in results) for name in ("failed", "passed", "skipped"))
    errors = sum(each.is_broken or any(f.when == "collect" for f in each.failures) for each in results)
    counts = ((failed, "failed"), (passed, "passed"), (skipped, "skipped"), (errors, "errors"))
    counted = ", ".join(f"{count} {name}" for count, name in counts if count or name == "passed")
    minutes, seconds = divmod(round(wall_s), 60)
    return f"==== {counted} in {wall_s:.2f}s ({minutes // 60}:{minutes % 60:02}:{seconds:02}) ===="
