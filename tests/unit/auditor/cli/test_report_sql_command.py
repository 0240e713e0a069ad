"""``bkheal report sql`` and ``bkheal report findings --since`` on reports on disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from auditor.cli.main import app
from bookie.model.exit_codes import ExitCode
from spark_jobs.report.tables.files import table_files
from spark_jobs.report.tables.schemas import SCHEMA_VERSION, TABLES
from tests.worlds.report_tables import HISTORY, write_history

WORST = "SELECT ledger_id, missing, severity FROM findings WHERE severity = 'no_live_copy'"


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("reports")
    write_history(directory)
    return directory


def bkheal(*arguments: str, reports: Path, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, ["report", *arguments, "--report-dir", str(reports)], input=stdin)


def test_results_are_printed_as_a_table_json_lines_and_csv(reports: Path) -> None:
    table = bkheal("sql", WORST, reports=reports)
    assert [line.split() for line in table.stdout.splitlines()] == [
        ["ledger_id", "missing", "severity"],
        ["1", "b:3181,c:3181", "no_live_copy"],
    ]
    row = {"ledger_id": 1, "missing": ["b:3181", "c:3181"], "severity": "no_live_copy"}
    assert json.loads(bkheal("sql", WORST, "-o", "json", reports=reports).stdout) == {
        "apiVersion": "bkheal/v1",
        "kind": "ReportAnswer",
        "columns": list(row),
        "items": [row],
        "cut": False,
        "left_out": [],
    }
    assert json.loads(bkheal("sql", WORST, "-o", "jsonl", reports=reports).stdout) == row
    assert bkheal("sql", "-", "-o", "csv", reports=reports, stdin=WORST).stdout == (
        'ledger_id,missing,severity\n1,"b:3181,c:3181",no_live_copy\n'
    )
    assert bkheal("sql", f"{WORST} AND false", reports=reports).stdout == "no rows\n"


def test_without_a_query_the_tables_are_listed(reports: Path) -> None:
    document = json.loads(bkheal("sql", "-o", "json", reports=reports).stdout)
    assert document["version"] == SCHEMA_VERSION
    assert {item["table"] for item in document["items"]} == set(TABLES)
    assert bkheal("sql", reports=reports).stdout.startswith("TABLE")


def test_a_truncated_result_and_a_damaged_file_are_noted(tmp_path: Path) -> None:
    write_history(tmp_path)
    path = table_files(tmp_path, "bookies").partitioned[0]
    path.write_bytes(b"torn")
    result = bkheal("sql", "SELECT bookie_id FROM bookies", "--limit", "2", reports=tmp_path)
    assert len(result.stdout.splitlines()) == 3
    assert "note: there are more rows than 2; --limit lists more" in result.stderr
    assert f"note: {path} is damaged, and its rows are left out" in result.stderr


def test_an_invalid_query_is_a_usage_error_without_a_traceback(reports: Path) -> None:
    result = bkheal("sql", "SELECT * FROM ledgers", reports=reports)
    assert result.exit_code == ExitCode.USAGE
    assert result.stderr.startswith("error: there is no table ledgers; the tables are runs,")
    assert result.stdout == ""


def test_findings_since_a_time_contain_their_run(reports: Path) -> None:
    result = bkheal("findings", "--since", "2026-01-04", "--limit", "2", "-o", "jsonl", reports=reports)
    rows = [json.loads(line)["finding"] for line in result.stdout.splitlines()]
    run_id = HISTORY[-1][0].run_id
    assert [(row["run_id"], row["kind"], row["ledger_id"]) for row in rows] == [
        (run_id, "missing_bookie", 1),
        (run_id, "missing_bookie", 3),
    ]
    assert result.stderr == f"note: there are more: --after {run_id}/3:1:MISSING_BOOKIE\n"
    rest = bkheal("findings", "--since", "2026-01-04", "--after", f"{run_id}/3:1:MISSING_BOOKIE", reports=reports)
    assert [line.split()[1] for line in rest.stdout.splitlines()[1:]] == ["4", "9"]


def test_findings_of_one_run_are_printed_as_json_lines(reports: Path) -> None:
    lines = bkheal("findings", "--limit", "1", "-o", "jsonl", reports=reports).stdout.splitlines()
    rows = [json.loads(line)["finding"] for line in lines]
    assert [(row["kind"], row["ledger_id"]) for row in rows] == [("missing_bookie", 1)]


@pytest.mark.parametrize(
    "words",
    [["2026", "--since", "1d"], ["--since", "yesterday"], ["--since", "1d", "--after", "1:0:MISSING_BOOKIE"]],
)
def test_since_cannot_be_combined_with_a_run_or_its_page(reports: Path, words: list[str]) -> None:
    assert bkheal("findings", *words, reports=reports).exit_code == ExitCode.USAGE


def test_an_empty_result_from_a_directory_without_runs_is_noted(reports: Path, tmp_path: Path) -> None:
    for words in (["sql", WORST], ["sql", WORST, "-o", "csv"], ["findings", "--since", "1d"]):
        elsewhere = bkheal(*words, reports=tmp_path / "misspelt")
        assert elsewhere.exit_code == ExitCode.OK
        assert f"note: {tmp_path / 'misspelt'} holds no run" in elsewhere.stderr
        assert "note" not in bkheal(*words, reports=reports).stderr
