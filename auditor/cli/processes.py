"""``bkheal bookie`` and ``bkheal replicator``: the long-running processes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
    plaintext: Annotated[bool, typer.Option("--plaintext", help="No TLS on an address others can reach.")] = False,
    tls_ca: Annotated[Path | None, typer.Option(help="PEM file; TLS on, for clients with its certificates.")] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="PEM file, with --tls-ca.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM file, with --tls-ca.")] = None,
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
        is_plaintext=plaintext,
        tls=TlsSettings(tls_ca, tls_cert, tls_key) if tls_ca else None,
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
    once: Annotated[bool, typer.Option("--once", help="End when every task is repaired or parked.")] = False,
) -> None:
    """Run a replicator until SIGTERM: lock, copy what is missing, swap the ensemble, delete the task."""
    from replicator.main import run_replicator
    from replicator.settings import ReplicatorSettings

    settings = ReplicatorSettings(
        metadata_uri=metadata_uri(uri, config),
        ledgers_in_flight=ledgers_in_flight,
        copy_bytes_per_second=bytes_per_second,
        open_ledger_grace_s=open_ledger_grace,
        once=once,
    )
    raise typer.Exit(run(run_replicator(settings)))
