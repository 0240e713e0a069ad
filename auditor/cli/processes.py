"""``bkheal bookie`` and ``bkheal replicator``: the long-running processes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from auditor.cli.http_options import (
    HttpHostOption,
    HttpPortOption,
    HttpTlsCertOption,
    HttpTlsClientCaOption,
    HttpTlsKeyOption,
    http_settings,
)
from auditor.cli.running import ConfigOption, MetadataUriOption, metadata_uri, run


def bookie(
    journal_dir: Annotated[Path, typer.Option(help="Directory of the journal; best on a disk of its own.")],
    ledger_dir: Annotated[Path, typer.Option(help="Directory of entry logs and index.")],
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    advertised_host: Annotated[str | None, typer.Option(help="Host that clients dial; default: --host.")] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 picks a free one.")] = 3181,
    bookie_id: Annotated[str | None, typer.Option(help="Default: the directory's own, else HOST:PORT.")] = None,
    read_only_below_bytes: Annotated[
        int, typer.Option(min=0, help="Turn read-only while a disk has less free space; 0: never.")
    ] = 1 << 30,
    new_incarnation: Annotated[
        bool, typer.Option("--new-incarnation", help="The old disks are lost for good: begin on these empty ones.")
    ] = False,
    collect_interval: Annotated[
        float, typer.Option(min=0, help="Seconds between collections of what nobody needs; 0: never.")
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
    from bookie.server.settings import BookieSettings
    from bookie.wire.tls import TlsSettings

    if tls_ca is None and (tls_cert or tls_key):
        raise typer.BadParameter("--tls-cert and --tls-key need --tls-ca")
    settings = BookieSettings(
        metadata_uri=metadata_uri(uri, config),
        journal_dir=journal_dir,
        ledger_dir=ledger_dir,
        host=host,
        advertised_host=advertised_host,
        port=port,
        bookie_id=bookie_id,
        read_only_below_bytes=read_only_below_bytes,
        is_new_incarnation=new_incarnation,
        collect_interval_s=collect_interval,
        collect_ratio_max=collect_ratio_max,
        is_plaintext=plaintext,
        tls=TlsSettings(tls_ca, tls_cert, tls_key) if tls_ca else None,
        http=http_settings(http_port, http_host, http_tls_cert, http_tls_key, http_tls_client_ca),
    )
    raise typer.Exit(run(run_bookie(settings)))


def replicator(
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    ledgers_in_flight: Annotated[int, typer.Option(min=1, max=256, help="Ledgers repaired side by side.")] = 16,
    bytes_per_second: Annotated[int, typer.Option(min=0, help="Copy limit of this process; 0 for none.")] = 0,
    open_ledger_grace: Annotated[
        float, typer.Option(min=0, help="Seconds that a bookie of an open ledger is gone before it is recovered.")
    ] = 30.0,
    min_racks: Annotated[int, typer.Option(min=1, help="Racks that each write quorum must span.")] = 2,
    min_zones: Annotated[int, typer.Option(min=1, help="Zones that each write quorum must span.")] = 1,
    min_regions: Annotated[int, typer.Option(min=1, help="Regions that each write quorum must span.")] = 1,
    strict_placement: Annotated[
        bool, typer.Option("--strict-placement", help="Park a ledger rather than break that.")
    ] = False,
    topology_file: Annotated[
        Path | None, typer.Option(help="Where bookies stand (docs/placement.md); default: what ZooKeeper says.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="End when every task is repaired or parked.")] = False,
    tls_ca: Annotated[Path | None, typer.Option(help="PEM file: bookies speak TLS, signed by this.")] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="PEM file, with --tls-ca.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM file, with --tls-ca.")] = None,
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
    from bookie.model.spread import PlacementPolicy
    from bookie.wire.tls import TlsSettings
    from replicator.main import run_replicator
    from replicator.settings import ReplicatorSettings

    if tls_ca is None and (tls_cert or tls_key):
        raise typer.BadParameter("--tls-cert and --tls-key need --tls-ca")
    settings = ReplicatorSettings(
        placement=PlacementPolicy(min_racks, min_zones, min_regions, is_strict=strict_placement),
        topology_file=topology_file,
        metadata_uri=metadata_uri(uri, config),
        ledgers_in_flight=ledgers_in_flight,
        copy_bytes_per_second=bytes_per_second,
        open_ledger_grace_s=open_ledger_grace,
        once=once,
        has_apache_metrics=compat_metrics,
        tls=TlsSettings(tls_ca, tls_cert, tls_key) if tls_ca else None,
        http=http_settings(http_port, http_host, http_tls_cert, http_tls_key, http_tls_client_ca),
    )
    raise typer.Exit(run(run_replicator(settings)))
