"""Options of ``bkheal audit``, each defined once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from bookie.model.run import RunKind
from spark_jobs.settings import SNAPSHOT_HELP, FailOn, fail_on

_SERVICE = "Through a running service"
_METRICS = "Metrics"

KindOption: TypeAlias = Annotated[RunKind, typer.Option(help="The check, as described above.")]
ReportDirOption: TypeAlias = Annotated[Path, typer.Option(help="Holds a directory with the report of each run.")]
MasterOption: TypeAlias = Annotated[str | None, typer.Option(help="Spark master; default: all cores of this machine.")]
FailOnOption: TypeAlias = Annotated[
    FailOn,
    typer.Option(
        parser=fail_on,
        metavar=f"<{'|'.join(level.value for level in FailOn)}>",
        help="Exit with 1 from these findings on.",
    ),
]
SnapshotOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(metavar="FILE", exists=True, dir_okay=False, help=SNAPSHOT_HELP, show_default=False),
]
WaitOption: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--wait", help="Wait for the end of a run of this kind that is under way; with --at: for the end of this run."
    ),
]
WaitSecondsOption: TypeAlias = Annotated[
    float | None, typer.Option(min=0, help="Like --wait, for at most this time, in seconds.", show_default=False)
]
ScheduledOption: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--scheduled",
        help="For cron: a schedule starts this run, so the start is not recorded in `bkheal changes`.",
    ),
]
MetricsPortOption: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--http-port",
        min=0,
        max=65535,
        help="Serve /metrics and probes on this port while the run lasts; 0 picks a free one.",
        rich_help_panel=_METRICS,
        show_default=False,
    ),
]
MetricsHostOption: TypeAlias = Annotated[
    str, typer.Option("--http-host", help="Address of that port.", rich_help_panel=_METRICS)
]
MetricsFileOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        help="Write the result for node-exporter's textfile collector, such as /textfile/bkheal-bookies.prom.",
        rich_help_panel=_METRICS,
        show_default=False,
    ),
]
PushgatewayOption: TypeAlias = Annotated[
    str | None,
    typer.Option(help="Push the result to this Pushgateway.", rich_help_panel=_METRICS, show_default=False),
]
ClusterNameOption: TypeAlias = Annotated[
    str, typer.Option(help="Name of the cluster at the Pushgateway.", rich_help_panel=_METRICS)
]
AtOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--at",
        help="URL of a running auditor, such as https://host:8080; several are tried in turn.",
        rich_help_panel=_SERVICE,
        show_default=False,
    ),
]
TokenFileOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(help="Holds the API token; default: $BKHEAL_TOKEN.", rich_help_panel=_SERVICE, show_default=False),
]
CaOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--ca",
        help="PEM file of the authority that signed the service's certificate.",
        rich_help_panel=_SERVICE,
        show_default=False,
    ),
]
ClientCertOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        help="PEM file of a client certificate, if the service requires one.",
        rich_help_panel=_SERVICE,
        show_default=False,
    ),
]
ClientKeyOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(help="PEM file of its key.", rich_help_panel=_SERVICE, show_default=False),
]
RunIdArgument: TypeAlias = Annotated[str, typer.Argument(metavar="RUN", help="Id of a run, see `bkheal audit list`.")]
OptionalRunIdArgument: TypeAlias = Annotated[
    str | None, typer.Argument(metavar="RUN", help="Id of a run, see `bkheal audit list`.", show_default=False)
]
PauseSpanOption: TypeAlias = Annotated[
    str, typer.Option("--for", help="With --kind: how long the pause lasts, such as 30m or 1d.", show_default=False)
]
ScheduleOption: TypeAlias = Annotated[
    RunKind | None, typer.Option("--kind", help="The schedule of this check instead of a run.", show_default=False)
]
