"""``docs/reports.md``: its examples of SQL run, and its tables are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from spark_jobs.report.sql import ask
from spark_jobs.report.table_schemas import SCHEMA_VERSION, TABLES, TableSchema
from tests.worlds.report_tables import write_story

ROOT = Path(__file__).resolve().parents[3]
DOCUMENT = (ROOT / "docs" / "reports.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^### ([^\n]+)\n\n```sql\n(.*?)```", DOCUMENT, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("reports")
    write_story(directory)
    return directory


def test_there_are_ten_examples_and_each_is_under_a_heading() -> None:
    assert len(EXAMPLES) >= 10
    assert len(EXAMPLES) == DOCUMENT.count("```sql")


@pytest.mark.parametrize(("title", "question"), EXAMPLES, ids=[title for title, _ in EXAMPLES])
def test_an_example_has_an_answer(reports: Path, title: str, question: str) -> None:
    answer = ask(reports, question, limit=100, timeout_s=60)
    assert answer.rows, title
    assert len(set(answer.columns)) == len(answer.columns)


def table_of(table: TableSchema) -> str:
    lines = [f"| `{column.name}` | {column.type} | {column.meaning} |" for column in table.columns]
    return "\n".join((f"### `{table.name}`: {table.row}\n", "| column | type | meaning |", "|---|---|---|", *lines))


@pytest.mark.parametrize("table", TABLES.values(), ids=lambda table: table.name)
def test_the_tables_are_those_of_the_code(table: TableSchema) -> None:
    assert table_of(table) in DOCUMENT


def test_the_version_is_that_of_the_code() -> None:
    assert f"version {SCHEMA_VERSION} " in DOCUMENT
