"""``bkheal auditor``: the long-lived service."""

from __future__ import annotations

from typing import Annotated

import typer

from auditor.cli.configuration.reloading import config_source
from auditor.cli.configuration.security_options import FRAME_HELP
from auditor.cli.configuration.settings import auditor_settings
from auditor.cli.running import ConfigOption, MetadataUriOption, metadata_uri, run
from bookie.wire.apache.framing import FRAME_BYTES_LIMIT, FRAME_BYTES_MAX
from bookie.wire.security import FRAME_BYTES_LEAST, SaslMechanism

_LOOPBACK = "127.0.0.1"
_SCHEDULE = 'off, an interval such as 15m or 24h, or five cron fields in UTC such as "17 2 * * 0".'


def auditor(
    context: typer.Context,
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    report_dir: Annotated[str, typer.Option(help="Directory with the reports of all runs.")] = "reports",
    bookies_schedule: Annotated[
        str, typer.Option(help=f"When the bookies check runs, besides after each loss of a bookie: {_SCHEDULE}")
    ] = "24h",
    placement_schedule: Annotated[str, typer.Option(help="When the placement check runs, written likewise.")] = "off",
    replicas_schedule: Annotated[
        str, typer.Option(help="When the replicas check runs, which asks every bookie for all it holds.")
    ] = "off",
    schedule_jitter_s: Annotated[
        int, typer.Option(help="Longest random delay of a scheduled run; at most a tenth of an interval.")
    ] = 60,
    misfire_grace_s: Annotated[int, typer.Option(help="How late a scheduled run may still begin.")] = 3600,
    missing_share_max: Annotated[
        float, typer.Option(help="Mark nothing when a larger share of the known bookies is missing.")
    ] = 0.5,
    session_timeout_s: Annotated[
        float, typer.Option(help="How long ZooKeeper waits for a silent auditor before another one takes over.")
    ] = 10.0,
    backlog_interval_s: Annotated[
        float, typer.Option(help="Time between two counts of the ledgers marked for repair.")
    ] = 15.0,
    http_host: Annotated[str, typer.Option(help="Address of the HTTP API, metrics and probes.")] = _LOOPBACK,
    http_port: Annotated[int, typer.Option(help="Its port; 0 picks a free one.")] = 8080,
    grpc_host: Annotated[str, typer.Option(help="Address of the gRPC control service.")] = _LOOPBACK,
    grpc_port: Annotated[int, typer.Option(help="Its port; 0 picks a free one.")] = 8081,
    tokens_file: Annotated[str, typer.Option(help="File with API tokens and their roles.")] = "",
    allow_anonymous_read: Annotated[bool, typer.Option(help="Show status, runs and reports without a token.")] = True,
    allow_anonymous_write: Annotated[
        bool, typer.Option(help="Start and end runs without a token; for loopback addresses only.")
    ] = False,
    tls_cert: Annotated[str, typer.Option(help="PEM file: HTTP and gRPC speak TLS; with --tls-key.")] = "",
    tls_key: Annotated[str, typer.Option(help="PEM file of the key.")] = "",
    tls_client_ca: Annotated[str, typer.Option(help="PEM file: clients need a certificate that it signed.")] = "",
    requests_per_second: Annotated[float, typer.Option(help="Of one client of the API, over time.")] = 20.0,
    spark_master: Annotated[
        str, typer.Option(help="Spark master; default: all cores of this machine, or spark-submit's.")
    ] = "",
    driver_memory: Annotated[str, typer.Option(help="Java heap of the Spark driver.")] = "1g",
    ui_enabled: Annotated[bool, typer.Option(help="Run Spark's UI, with the tab Auditor.")] = True,
    ui_host: Annotated[str, typer.Option(help="Address of Spark's UI.")] = _LOOPBACK,
    ui_port: Annotated[int, typer.Option(help="Port of Spark's UI; 0 picks a free one.")] = 4040,
    ui_trigger_enabled: Annotated[bool, typer.Option(help="Buttons that start and cancel runs in the tab.")] = False,
    ui_allow_anonymous: Annotated[
        bool, typer.Option(help="The buttons work without a user name; for a loopback address only.")
    ] = False,
    ui_proxy_base: Annotated[str, typer.Option(help="Path under which a proxy serves Spark's UI.")] = "",
    topology_file: Annotated[
        str,
        typer.Option(
            help="Topology file: the rack of each bookie (docs/placement.md). Default: the topology in ZooKeeper."
        ),
    ] = "",
    min_racks: Annotated[int, typer.Option(help="Racks that each write quorum must span.")] = 2,
    min_zones: Annotated[int, typer.Option(help="Zones that each write quorum must span.")] = 1,
    min_regions: Annotated[int, typer.Option(help="Regions that each write quorum must span.")] = 1,
    strict_placement: Annotated[
        bool, typer.Option("--strict-placement", help="Report also ensembles that span every domain there is.")
    ] = False,
    bookie_tls_ca: Annotated[str, typer.Option(help="PEM file: bookies speak TLS, signed by this.")] = "",
    bookie_tls_cert: Annotated[str, typer.Option(help="PEM file, with --bookie-tls-ca.")] = "",
    bookie_tls_key: Annotated[str, typer.Option(help="PEM file, with --bookie-tls-ca.")] = "",
    bookie_sasl_username: Annotated[str, typer.Option(help="Log in at Apache bookies that ask for it (SASL).")] = "",
    bookie_sasl_password_file: Annotated[str, typer.Option(help="Its first line is the password.")] = "",
    bookie_sasl_mechanism: Annotated[
        SaslMechanism, typer.Option(help="How to log in.", case_sensitive=False)
    ] = SaslMechanism.DIGEST_MD5,
    bookie_frame_bytes_max: Annotated[
        int, typer.Option(min=FRAME_BYTES_LEAST, max=FRAME_BYTES_LIMIT, help=FRAME_HELP)
    ] = FRAME_BYTES_MAX,
    reports_kept: Annotated[int, typer.Option(help="Reports that are kept.")] = 50,
    runs_kept: Annotated[int, typer.Option(help="Run records that are kept in ZooKeeper.")] = 200,
    compat_metrics: Annotated[bool, typer.Option(help="Also export the metric names of Apache's auditor.")] = False,
) -> None:
    """Run the auditor until SIGTERM: audit by schedule, and whenever a bookie is lost.

    Start two or more; one leads, the others take over within seconds (Apache's auditors vote in the same election). The
    leader watches the bookies. When one is lost and not back within the delay for lost bookies
    (`lostBookieRecoveryDelay`, 0 by default), every ledger that misses a copy is marked, and replicators repair it. If
    more than --missing-share-max of the bookies are missing, nothing is marked, and the status reports it.

    Look at http://127.0.0.1:8080/status, start a run with `curl -X POST`, or use the tab Auditor in Spark's UI.
    Liveness is /livez, readiness /readyz, metrics /metrics.

    Exit codes: 0 stopped as asked, 70 Spark is dead or does not start (restart the process), 78 wrong configuration, an
    address in use, or no BookKeeper cluster there. ZooKeeper being away ends nothing: the auditor waits and goes on by
    itself.
    """
    from auditor.service.main import run_auditor

    settings = auditor_settings(metadata_uri(uri, config), context.params)
    raise typer.Exit(run(run_auditor(settings, config_source(context, auditor_settings))))
