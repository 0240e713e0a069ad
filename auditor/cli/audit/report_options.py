"""Options and arguments of the commands about reports."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from auditor.cli.output import print_note
from bookie.model.severity import Severity
from bookie.runtime.human import printable

SeverityName = StrEnum("SeverityName", [(level.name, level.label) for level in Severity])  # type: ignore[misc]
"""The severities, named as in documents."""


def severity_name(text: object) -> SeverityName:
    """Return a severity by its name, which may be written with hyphens or in upper case.

    Raises:
        ValueError: there is no such severity.
    """
    name = str(text).lower().replace("-", "_")
    if name not in [each.value for each in SeverityName]:
        raise ValueError(f"{text!r} is not one of {', '.join(each.value for each in SeverityName)}")
    return SeverityName(name)


SeverityOption = Annotated[
    SeverityName | None,
    typer.Option(
        parser=severity_name,
        metavar=f"<{'|'.join(each.value for each in SeverityName)}>",
        help="Only this severity.",
        show_default=False,
    ),
]

ReportDirOption = Annotated[
    Path,
    typer.Option(
        "--report-dir",
        envvar="BKHEAL_AUDITOR_REPORT_DIR",
        help="Directory to which audits write their reports.",
        show_envvar=True,
    ),
]
RunArgument = Annotated[str, typer.Argument(help="Id of a run, or how it begins, or `latest`.")]


def print_note_if_no_runs(report_dir: Path) -> None:
    """Print a note if the tables of a directory contain no run, because an empty answer then has no meaning."""
    from spark_jobs.report.tables.files import table_files
    from spark_jobs.report.tables.schemas import RUNS

    found = table_files(report_dir, RUNS.name)
    if not (found.partitioned or found.flat):
        place = printable(str(report_dir.resolve()))
        print_note(f"{place} holds no run; `bkheal audit run` writes one, --report-dir names another place")
