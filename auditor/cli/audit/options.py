"""Options of ``bkheal audit``, each in one place."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from bookie.model.run import RunKind

_PLACEMENT = "Placement check"
_REPLICAS = "Replicas check"
_SERVICE = "Through a running service"
_METRICS = "Metrics"

KindOption: TypeAlias = Annotated[RunKind, typer.Option(help="Which check, see above.")]
ReportDirOption: TypeAlias = Annotated[Path, typer.Option(help="Holds a directory with the report of each run.")]
ReportsKeptOption: TypeAlias = Annotated[
    int | None, typer.Option(min=1, help="Remove the oldest reports above this number.", show_default="all")
]
DryRunOption: TypeAlias = Annotated[bool, typer.Option("--dry-run", help="Find and report, but mark nothing.")]
MasterOption: TypeAlias = Annotated[str | None, typer.Option(help="Spark master; default: all cores of this machine.")]
FailOnOption: TypeAlias = Annotated[
    str,
    typer.Option(help="Exit with 1 from these findings on: never, no-live-copy, critical, under-replicated, any."),
]
MissingShareOption: TypeAlias = Annotated[
    float, typer.Option(min=0, max=1, help="Mark nothing when a larger share of the known bookies is missing.")
]
WaitOption: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--wait", help="Wait for the end of a run of this kind that is under way; with --at: for the end of this run."
    ),
]
WaitSecondsOption: TypeAlias = Annotated[
    float | None, typer.Option(min=0, help="As --wait, at most so many seconds.", show_default=False)
]
TopologyFileOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        help="Topology file (JSON): the rack of each bookie. Default: the topology in ZooKeeper.",
        rich_help_panel=_PLACEMENT,
        show_default=False,
    ),
]
MinRacksOption: TypeAlias = Annotated[
    int, typer.Option(min=1, help="Racks that each write set must span.", rich_help_panel=_PLACEMENT)
]
MinZonesOption: TypeAlias = Annotated[
    int, typer.Option(min=1, help="Zones that each write set must span.", rich_help_panel=_PLACEMENT)
]
MinRegionsOption: TypeAlias = Annotated[
    int, typer.Option(min=1, help="Regions that each write set must span.", rich_help_panel=_PLACEMENT)
]
StrictOption: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--strict-placement",
        help="Report also ensembles that span every domain there is.",
        rich_help_panel=_PLACEMENT,
    ),
]
MarkMisplacedOption: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--mark-misplaced",
        help="Mark closed ledgers that a replacement would improve, for Apache's workers to move.",
        rich_help_panel=_PLACEMENT,
    ),
]
LedgerMinOption: TypeAlias = Annotated[
    int, typer.Option(min=0, help="Lowest ledger id to ask for.", rich_help_panel=_REPLICAS)
]
LedgerMaxOption: TypeAlias = Annotated[
    int | None,
    typer.Option(min=0, help="Highest ledger id to ask for.", rich_help_panel=_REPLICAS, show_default=False),
]
SampleOption: TypeAlias = Annotated[
    float,
    typer.Option(
        min=0, max=1, help="Share of the ledgers to ask for, such as 0.01; chosen by id.", rich_help_panel=_REPLICAS
    ),
]
SampleSeedOption: TypeAlias = Annotated[
    int | None,
    typer.Option(help="Which sample; default: another one each time.", rich_help_panel=_REPLICAS, show_default=False),
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
        "--ca", help="PEM file of who signed the service's certificate.", rich_help_panel=_SERVICE, show_default=False
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
