"""Options and arguments of the commands about reports."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from bookie.model.severity import Severity

SeverityName = StrEnum("SeverityName", [(level.name, level.label) for level in Severity])  # type: ignore[misc]
"""The severities by their names in documents."""

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
