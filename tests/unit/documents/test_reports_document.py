"""``docs/reports.md``: its SQL examples run, and its tables match the code."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from bookie.model.run import RunKind
from bookie.model.severity import Severity
from spark_jobs.report.tables.schemas import SCHEMA_VERSION, TABLES, TableSchema
from spark_jobs.report.tables.sql import ask
from tests.worlds import report as world
from tests.worlds.report_tables import dangling, finding, run, write, write_history

ROOT = Path(__file__).resolve().parents[3]
DOCUMENT = (ROOT / "docs" / "reports.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^### ([^\n]+)\n\n```sql\n(.*?)```", DOCUMENT, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("reports")
    write_history(directory)
    return directory


def test_there_are_ten_examples_and_each_is_under_a_heading() -> None:
    assert len(EXAMPLES) >= 10
    assert len(EXAMPLES) == DOCUMENT.count("```sql")


@pytest.mark.parametrize(("title", "question"), EXAMPLES, ids=[title for title, _ in EXAMPLES])
def test_an_example_returns_rows(reports: Path, title: str, question: str) -> None:
    answer = ask(reports, question, limit=100, timeout_s=60)
    assert answer.rows, title
    assert len(set(answer.columns)) == len(answer.columns)


def test_the_examples_include_full_runs_without_findings_that_only_those_have(tmp_path: Path) -> None:
    missing, other = finding(1, "b:3181"), finding(2, "b:3181")
    misplaced = {**finding(3, severity=Severity.MISPLACED), "kind": "MISPLACED"}
    rows = (
        (RunKind.BOOKIES, (missing,)),
        (RunKind.EVERYTHING, (missing, misplaced, dangling("gone:3181"))),
        (RunKind.EVERYTHING, (missing, other, {**misplaced, "ledger_id": 4}, dangling("gone:3181"))),
        (RunKind.BOOKIES, (other,)),
    )
    questions = dict(EXAMPLES)

    def answer(title: str) -> list[object]:
        return [row[0] for row in ask(tmp_path, questions[title], limit=100, timeout_s=60).rows]

    for day, (kind, found) in enumerate(rows):
        write(tmp_path, run(day, found, lost=["b:3181"], of=replace(world.CLEAN, kind=kind)), found)
        assert len(answer("Ledgers with findings, day by day")) == day + 1
        ledgers = [row["ledger_id"] for row in found if row["kind"] == "MISSING_BOOKIE"]
        assert answer("The worst ledgers of the last complete run") == ledgers
        assert answer("What each missing bookie holds up") == ["b:3181"]
        earlier = rows[day - 1][1] if day else ()
        before = [row["ledger_id"] for row in earlier if row["kind"] == "MISSING_BOOKIE"]
        new = [ledger for ledger in ledgers if ledger not in before]
        assert answer("Ledgers that the last run found and the one before did not") == new
        gone = [ledger for ledger in before if ledger not in ledgers]
        assert answer("Ledgers that were repaired or deleted between two runs") == gone


def table_of(table: TableSchema) -> str:
    lines = [f"| `{column.name}` | {column.type} | {column.meaning} |" for column in table.columns]
    return "\n".join((f"### `{table.name}`: {table.row}\n", "| column | type | meaning |", "|---|---|---|", *lines))


@pytest.mark.parametrize("table", TABLES.values(), ids=lambda table: table.name)
def test_the_tables_are_those_of_the_code(table: TableSchema) -> None:
    assert table_of(table) in DOCUMENT


def test_the_version_is_that_of_the_code() -> None:
    assert f"version {SCHEMA_VERSION} " in DOCUMENT
