"""``bkheal bookie`` and ``bkheal replicator``: the long-running processes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from auditor.cli.configuration import security_options as sec
from auditor.cli.configuration.http_options import (
    HttpHostOption,
    HttpPortOption,
    HttpTlsCertOption,
    HttpTlsClientCaOption,
    HttpTlsKeyOption,
)
from auditor.cli.configuration.reloading import config_source
from auditor.cli.configuration.settings import bookie_settings, replicator_settings
from auditor.cli.output import OutputFormat
from auditor.cli.running import ConfigOption, MetadataUriOption, metadata_uri, run
from bookie.wire.apache.framing import FRAME_BYTES_MAX
from bookie.wire.security import SaslMechanism


def bookie(
    context: typer.Context,
    journal_dir: Annotated[Path, typer.Option(help="Directory of the journal; best on a disk of its own.")],
    ledger_dir: Annotated[Path, typer.Option(help="Directory of entry logs and index.")],
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    advertised_host: Annotated[str | None, typer.Option(help="Host that clients dial; default: --host.")] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 picks a free one.")] = 3181,
    apache_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Also speak Apache BookKeeper's protocol on this port, so that Apache's clients and tools can use "
            "this bookie; 0 picks a free one.",
        ),
    ] = None,
    apache_connections_max: Annotated[
        int,
        typer.Option(
            min=1,
            help="Connections to that port at once; one more is closed. Apache's clients open up to 16 each under "
            "Pulsar, and each may hold half a megabyte here beside what all of them share.",
        ),
    ] = 1024,
    bookie_id: Annotated[
        str | None, typer.Option(help="Default: the directory's own, else HOST:PORT (HOST:APACHE_PORT, if given).")
    ] = None,
    read_only_below_bytes: Annotated[
        int, typer.Option(min=0, help="Turn read-only while a disk has less free space; 0: never.")
    ] = 1 << 30,
    new_incarnation: Annotated[
        bool, typer.Option("--new-incarnation", help="The old disks are lost permanently: start on these empty ones.")
    ] = False,
    collect_interval: Annotated[
        float,
        typer.Option(min=0, help="Seconds between garbage collections (deleted or moved ledgers). 0 disables them."),
    ] = 3600.0,
    collect_ratio_max: Annotated[
        float, typer.Option(min=0.01, max=1, help="Collect nothing when more than this share would go.")
    ] = 0.5,
    plaintext: Annotated[bool, typer.Option("--plaintext", help="No TLS on an address others can reach.")] = False,
    tls_ca: Annotated[Path | None, typer.Option(help="PEM file; TLS on, for clients with its certificates.")] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="PEM file, with --tls-ca.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM file, with --tls-ca.")] = None,
    http_port: HttpPortOption = None,
    http_host: HttpHostOption = "127.0.0.1",
    http_tls_cert: HttpTlsCertOption = None,
    http_tls_key: HttpTlsKeyOption = None,
    http_tls_client_ca: HttpTlsClientCaOption = None,
) -> None:
    """Run a bookie until SIGTERM. Prints one line once it is registered."""
    from bookie.server.main import run_bookie

    settings = bookie_settings(metadata_uri(uri, config), context.params)
    raise typer.Exit(run(run_bookie(settings, config_source(context, bookie_settings))))


def replicator(
    context: typer.Context,
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    ledgers_in_flight: Annotated[int, typer.Option(min=1, max=256, help="Ledgers repaired side by side.")] = 16,
    bytes_per_second: Annotated[int, typer.Option(min=0, help="Copy limit of this process; 0 for none.")] = 0,
    open_ledger_grace: Annotated[
        float,
        typer.Option(
            min=0, help="Seconds that a bookie of an open ledger may be missing before the ledger is recovered."
        ),
    ] = 30.0,
    min_racks: Annotated[int, typer.Option(min=1, help="Racks that each write quorum must span.")] = 2,
    min_zones: Annotated[int, typer.Option(min=1, help="Zones that each write quorum must span.")] = 1,
    min_regions: Annotated[int, typer.Option(min=1, help="Regions that each write quorum must span.")] = 1,
    strict_placement: Annotated[
        bool, typer.Option("--strict-placement", help="Park a ledger rather than break that.")
    ] = False,
    topology_file: Annotated[
        Path | None,
        typer.Option(
            help="Topology file: the rack of each bookie (docs/placement.md). Default: the topology in ZooKeeper."
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="End when every task is repaired or parked.")] = False,
    output: Annotated[
        OutputFormat,
        typer.Option("--output", "-o", help="A line for people when it is ready, or a line of JSON for each event."),
    ] = OutputFormat.TABLE,
    tls_ca: sec.TlsCaOption = None,
    tls_cert: sec.TlsCertOption = None,
    tls_key: sec.TlsKeyOption = None,
    sasl_username: sec.SaslUsernameOption = "",
    sasl_password_file: sec.SaslPasswordFileOption = None,
    sasl_mechanism: sec.SaslMechanismOption = SaslMechanism.DIGEST_MD5,
    frame_bytes_max: sec.FrameBytesMaxOption = FRAME_BYTES_MAX,
    compat_metrics: Annotated[
        bool, typer.Option("--compat-metrics", help="Also show the metrics of Apache's replication worker.")
    ] = False,
    http_port: HttpPortOption = None,
    http_host: HttpHostOption = "127.0.0.1",
    http_tls_cert: HttpTlsCertOption = None,
    http_tls_key: HttpTlsKeyOption = None,
    http_tls_client_ca: HttpTlsClientCaOption = None,
) -> None:
    """Run a replicator until SIGTERM: lock, copy what is missing, swap the ensemble, delete the task."""
    from replicator.main import run_replicator

    settings = replicator_settings(metadata_uri(uri, config), context.params)
    raise typer.Exit(run(run_replicator(settings, config_source(context, replicator_settings))))
