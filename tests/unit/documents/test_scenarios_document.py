"""The tests in ``docs/scenarios.md`` exist, its rules are defined, and the numbers of its scenarios are unique."""

from __future__ import annotations

import re

from tests.unit.documents.named_tests import ROOT, missing, named_in
from tests.unit.documents.test_links import anchors

ROW = re.compile(r"^\| (\d+) \| ([^|]+) \| ([^|]+) \| ([^|]*)\| ([^|]+) \|$", re.MULTILINE)
ROWS_MIN = 40
REAL_PROCESSES = (
    "tests/integration/",
    "tests/apache/",
    "tests/spark/test_standalone_",
    "tests/spark/test_zookeeper_faults.py",
    "tests/spark/test_failing_report_dir.py",
)


def test_every_scenario_names_an_existing_test_on_real_processes() -> None:
    for number, scenario, outcome, _, shown_by in _rows():
        named = named_in(shown_by)
        assert named, number
        assert all(test and path.startswith(REAL_PROCESSES) for path, test in named), number
        assert missing(named) == [], number
        assert scenario.strip(), number
        assert outcome.strip(), number


def test_the_table_has_its_rows_with_unique_numbers() -> None:
    numbers = [int(number) for number, *_ in _rows()]
    assert len(numbers) >= ROWS_MIN
    assert len(set(numbers)) == len(numbers)
    assert len(numbers) == len(re.findall(r"^\| \d", _document(), re.MULTILINE)), "every row has five columns"


def test_every_rule_mentioned_is_defined() -> None:
    invariants = (ROOT / "docs/invariants.md").read_text()
    rows = re.findall(r"^\| (\w+(?:, \w+)*) \|", invariants, re.MULTILINE)
    defined = {rule for row in rows for rule in row.split(", ")} | anchors(ROOT / "docs/failure-model.md")
    named = {rule for *_, rules, _ in _rows() for rule in rules.replace(",", " ").split()}
    assert named - defined == set()


def _rows() -> list[tuple[str, ...]]:
    return ROW.findall(_document())


def _document() -> str:
    return (ROOT / "docs" / "scenarios.md").read_text()
