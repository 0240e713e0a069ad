"""The table of sabotages matches the tree, and a report of pytest is evaluated correctly."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.sabotage.command import main
from tests.sabotage.runner import Outcome, judge
from tests.sabotage.table import Sabotage, StaleTableError, broken, load, problems

TABLE = load()
ONE = TABLE[0]


@pytest.mark.parametrize("sabotage", TABLE, ids=lambda sabotage: sabotage.name)
def test_a_sabotage_matches_the_tree(sabotage: Sabotage) -> None:
    assert list(problems(sabotage)) == []


def test_names_are_unique() -> None:
    assert len({sabotage.name for sabotage in TABLE}) == len(TABLE)


@pytest.mark.parametrize(
    ("stale", "says"),
    [
        (replace(ONE, text="never in this file"), "0 times"),
        (replace(ONE, text="\n"), "times in"),
        (replace(ONE, file="no/such/file.py"), "No such file"),
        (replace(ONE, replacement="def ("), "expected an indented block"),
        (replace(ONE, replacement=ONE.text), "changes nothing"),
        (replace(ONE, tests=()), "names no test"),
        (replace(ONE, tests=("tests/unit/test_nothing.py::test_a",)), "no such file"),
        (replace(ONE, tests=("tests/unit/rings/test_sabotage_table.py::test_a",)), "no such test"),
    ],
)
def test_a_sabotage_that_does_not_match_is_reported(stale: Sabotage, says: str) -> None:
    assert says in "; ".join(problems(stale))


def test_a_test_outside_the_gate_is_refused(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text("x = 1\n")
    (tmp_path / "test_module.py").write_text("pytestmark = [pytest.mark.long]\ndef test_a(): pass\n")
    (tmp_path / "test_one.py").write_text("@pytest.mark.long\ndef test_a(): pass\ndef test_b(): pass\n")
    one = Sabotage("one", "a number", "code.py", "1", "2", ("test_module.py::test_a", "test_one.py::test_a"))
    assert len([problem for problem in problems(one, tmp_path) if "not part of the gate" in problem]) == 2
    assert list(problems(replace(one, tests=("test_one.py::test_b",)), tmp_path)) == []
    assert broken(one, tmp_path) == "x = 2\n"
    with pytest.raises(StaleTableError, match="0 times"):
        broken(replace(one, text="3"), tmp_path)


def reported(**cases: str) -> ElementTree.Element:
    """Return a report with one case for each test, with this outcome."""
    suite = ElementTree.Element("testsuite")
    for name, outcome in cases.items():
        case = ElementTree.SubElement(suite, "testcase", file="tests/test_x.py", name=name)
        if outcome != "passed":
            ElementTree.SubElement(case, outcome)
    return suite


@pytest.mark.parametrize(
    ("cases", "outcome"),
    [
        ({"test_a": "failure", "test_b": "failure"}, Outcome.CAUGHT),
        ({"test_a": "failure", "test_b": "passed"}, Outcome.SURVIVED),
        ({"test_a": "passed", "test_b": "passed"}, Outcome.SURVIVED),
        ({"test_a": "failure", "test_b[one]": "passed", "test_b[two]": "failure"}, Outcome.CAUGHT),
        ({"test_a": "failure"}, Outcome.ERROR),
        ({"test_a": "failure", "test_b": "error"}, Outcome.ERROR),
        ({"test_a": "failure", "test_b": "skipped"}, Outcome.ERROR),
        ({"test_a": "failure", "test_bc": "failure"}, Outcome.ERROR),
    ],
)
def test_only_failed_tests_catch_a_sabotage(cases: dict[str, str], outcome: Outcome) -> None:
    assert judge(("tests/test_x.py::test_a", "tests/test_x.py::test_b"), reported(**cases))[0] is outcome


def test_the_list_contains_every_sabotage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    listed = capsys.readouterr().out
    assert all(f"{sabotage.name}: {sabotage.breaks}" in listed for sabotage in TABLE)


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["no-such-sabotage"])
    assert "no-such-sabotage" in capsys.readouterr().err
