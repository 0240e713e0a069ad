"""Options and arguments of the commands about reports."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from auditor.cli.cluster.at import Service
from bookie.model.severity import Severity

SeverityName = StrEnum("SeverityName", [(level.name, level.label) for level in Severity])  # type: ignore[misc]
"""The severities as documents name them."""

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


def latest_there(service: Service) -> str:
    """The id of the newest run that left a report with a service.

    Raises:
        typer.BadParameter: there is none.
    """
    reports = service.ask("GET", "/reports")["items"]
    if not reports:
        raise typer.BadParameter("the service has no report")
    return str(reports[0]["run_id"])
