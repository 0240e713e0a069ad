"""How the runner of the rings evaluates the reports of pytest's processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.rings.plan import TESTS, Ring, files_of, load_rings, parts_of
from tests.rings.results import PartResult, closing_line, over_budget, skip_reasons, slowest, take_report, totals
from tests.rings.suites import load_suites, run_suites

RING = Ring("unit", budget_s=10, test_limit_s=60)


def report(test: str, outcome: str, when: str = "call", duration: float = 1.0, longrepr: Any = None) -> str:
    found = {"$report_type": "TestReport", "nodeid": test, "outcome": outcome, "when": when, "duration": duration}
    return json.dumps({**found, "longrepr": longrepr})


def result_of(*lines: str, wall_s: float = 1.0, exit_code: int = 0) -> PartResult:
    result = PartResult("unit-1", "unit", wall_s=wall_s, exit_code=exit_code)
    take_report(result, lines)
    return result


def test_every_folder_with_tests_is_a_ring() -> None:
    folders = {path.relative_to(TESTS).parts[0] for path in TESTS.rglob("test_*.py")}
    assert folders == {ring.name for ring in load_rings()}


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_each_file_of_a_ring_runs_in_one_process(parts: int) -> None:
    files = files_of("unit")
    dealt = parts_of(Ring("unit", 1, 1, parts), files)
    assert sorted(file for part in dealt for file in part.files) == files
    assert len({part.name for part in dealt}) == len(dealt) == parts


def test_a_process_without_files_is_not_started() -> None:
    assert len(parts_of(Ring("unit", 1, 1, parts=3), [Path("test_a.py")])) == 1


def test_a_test_is_timed_over_its_phases_and_counted_once() -> None:
    result = result_of(
        report("a", "passed", "setup", 2.0), report("a", "passed", "call", 3.0), report("a", "passed", "teardown", 4.0)
    )
    assert (result.count("passed"), result.seconds["a"], result.has_failed) == (1, 9.0, False)


@pytest.mark.parametrize("when", ["setup", "call", "teardown"])
def test_a_failure_in_any_phase_is_a_failed_test_with_its_reason(when: str) -> None:
    crash = {"reprcrash": {"path": "test_a.py", "lineno": 7, "message": "assert 1 == 2"}}
    lines = [
        report("a", "failed" if phase == when else "passed", phase, longrepr=crash)
        for phase in ("setup", "call", "teardown")
    ]
    result = result_of(*lines, exit_code=1)
    assert (result.count("failed"), result.count("passed")) == (1, 0)
    assert [(failure.test, failure.when) for failure in result.failures] == [("a", when)]
    assert result.failures[0].reason == "test_a.py:7: assert 1 == 2"


def test_a_file_that_cannot_be_collected_fails_the_run() -> None:
    line = json.dumps({"$report_type": "CollectReport", "nodeid": "test_a.py", "outcome": "failed", "longrepr": "E  x"})
    result = result_of(line, exit_code=2)
    assert result.has_failed
    assert "1 errors" in closing_line([result], 1)


@pytest.mark.parametrize(
    ("exit_code", "is_broken"), [(0, False), (1, True), (2, True), (3, True), (5, False), (-9, True)]
)
def test_an_exit_code_that_no_test_explains_is_a_failure(exit_code: int, is_broken: bool) -> None:
    assert result_of(report("a", "passed"), exit_code=exit_code).has_failed == is_broken


def test_skipped_tests_are_counted_by_reason() -> None:
    skipped = [report(test, "skipped", "setup", longrepr=["test_a.py", 3, "Skipped: no helm"]) for test in ("a", "b")]
    result = result_of(*skipped)
    assert skip_reasons([result]) == ["    2 skipped: Skipped: no helm"]
    assert (result.count("skipped"), result.has_failed) == (2, False)


@pytest.mark.parametrize(("wall_s", "sentences"), [(15.0, 0), (15.1, 1)])
def test_a_ring_that_exceeds_its_time_by_half_is_reported(wall_s: float, sentences: int) -> None:
    found = over_budget(totals([RING], [result_of(report("a", "passed"), wall_s=wall_s)]))
    assert len(found) == sentences
    assert all("ring unit took" in sentence for sentence in found)


def test_a_ring_is_the_sum_of_its_processes() -> None:
    [total] = totals([RING, Ring("spark", 1, 1)], [result_of(report("a", "passed")), result_of(report("b", "passed"))])
    assert (total.wall_s, total.passed) == (2.0, 2)


def test_the_slowest_tests_come_first() -> None:
    lines = slowest([result_of(report("a", "passed", duration=1), report("b", "passed", duration=5))], count=1)
    assert lines == ["    5.0 s  b"]


def test_the_closing_line_has_the_format_of_pytest() -> None:
    result = result_of(report("a", "passed"), report("b", "failed", longrepr="no"), exit_code=1)
    assert closing_line([result], 61.0) == "==== 1 failed, 1 passed in 61.00s (0:01:01) ===="
    assert closing_line([], 1.0) == "==== 0 passed in 1.00s (0:00:01) ===="


def test_suite_names_are_unique_and_every_suite_runs_even_if_others_fail(tmp_path: Path) -> None:
    names = [suite.name for suite in load_suites()]
    assert len(names) == len(set(names))
    table = tmp_path / "suites.toml"
    one = '[{name}]\nwhat = "w"\nminutes = 1\ncommand = "python -c \'raise SystemExit({code})\'"\n'
    table.write_text(one.format(name="bad", code=3) + one.format(name="good", code=0))
    lines: list[str] = []
    assert run_suites(load_suites(table), lines.append) == 1
    assert any(line.startswith("==== bad: failed, exit code 3") for line in lines)
    assert any(line.startswith("==== good: passed") for line in lines)
