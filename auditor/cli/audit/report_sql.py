"""``bkheal report sql``: SQL queries over all runs. Needs neither Spark nor a cluster."""

from __future__ import annotations

import csv
import enum
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from auditor.cli.audit.report_options import ReportDirOption, print_note_if_no_runs
from auditor.cli.output import print_error, print_json, print_line, print_note, print_table
from bookie.model.exit_codes import ExitCode
from bookie.runtime.human import printable

if TYPE_CHECKING:
    from spark_jobs.report.tables.sql import QueryResult

_QUESTION_MAX: Final = 1 << 20


class AnswerFormat(enum.StrEnum):
    """Values of ``--output`` for the answer to a query."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"
    """Only the rows, one JSON object per line."""
    CSV = "csv"


def sql(
    question: Annotated[
        str | None,
        typer.Argument(
            help="One SELECT; `-` reads it from standard input. Default: list the tables.", show_default=False
        ),
    ] = None,
    report_dir: ReportDirOption = Path("reports"),
    limit: Annotated[int, typer.Option(min=1, max=10_000_000, help="Rows at most.")] = 1_000,
    timeout_s: Annotated[float, typer.Option(min=0.1, max=3_600, help="Seconds until the answer.")] = 30,
    output: Annotated[
        AnswerFormat,
        typer.Option("--output", "-o", help="A table for people, JSON, one JSON object in a line, or CSV."),
    ] = AnswerFormat.TABLE,
) -> None:
    """Query the runs, the findings and the bookies of all reports in SQL.

    The dialect is DuckDB's. A query can only read these tables, and change nothing. Times are in UTC. docs/reports.md
    describes the tables and their columns.

    Example: `bkheal report sql "SELECT day, count(*) FROM findings WHERE severity = 'critical' GROUP BY day"`
    """
    from spark_jobs.report.tables.sql import QueryRefusedError, ask

    if question is None:
        _print_tables(output)
        return
    text = sys.stdin.read(_QUESTION_MAX) if question == "-" else question
    try:
        answer = ask(report_dir, text, limit=limit, timeout_s=timeout_s)
    except QueryRefusedError as error:
        print_error(str(error))
        raise typer.Exit(ExitCode.USAGE) from None
    _print(answer, output)
    print_note_if_no_runs(report_dir)
    if answer.is_cut:
        print_note(f"there are more rows than {limit}; --limit lists more")
    for path in answer.left_out:
        print_note(f"{printable(path)} is damaged, and its rows are left out")


def _print(answer: QueryResult, output: AnswerFormat) -> None:
    from spark_jobs.report.tables.sql_values import as_json, as_text

    if output is AnswerFormat.JSON:
        items = [_object(answer.columns, row, as_json) for row in answer.rows]
        print_json(
            "ReportAnswer", columns=answer.columns, items=items, cut=answer.is_cut, left_out=list(answer.left_out)
        )
    elif output is AnswerFormat.JSONL:
        for row in answer.rows:
            print_line(json.dumps(_object(answer.columns, row, as_json)))
    elif output is AnswerFormat.CSV:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(answer.columns)
        writer.writerows([["" if value is None else as_text(value) for value in row] for row in answer.rows])
    elif answer.rows:
        right = [n for n, value in enumerate(answer.rows[0]) if isinstance(value, int | float)]
        cells = [["-" if value is None else printable(as_text(value)) for value in row] for row in answer.rows]
        print_table([printable(name) for name in answer.columns], cells, right=right)
    else:
        print_line("no rows")


def _object(columns: Sequence[str], row: Sequence[Any], convert: Any) -> dict[str, Any]:
    return {name: convert(value) for name, value in zip(columns, row, strict=True)}


def _print_tables(output: AnswerFormat) -> None:
    from spark_jobs.report.tables.schemas import SCHEMA_VERSION, TABLES

    rows = [
        (table.name, column.name, column.type, column.meaning) for table in TABLES.values() for column in table.columns
    ]
    headings = ("table", "column", "type", "meaning")
    if output is AnswerFormat.JSON:
        print_json(
            "ReportTableList", version=SCHEMA_VERSION, items=[dict(zip(headings, row, strict=True)) for row in rows]
        )
    elif output is AnswerFormat.JSONL:
        for row in rows:
            print_line(json.dumps(dict(zip(headings, row, strict=True))))
    elif output is AnswerFormat.CSV:
        csv.writer(sys.stdout, lineterminator="\n").writerows([headings, *rows])
    else:
        print_table([name.upper() for name in headings], rows)
