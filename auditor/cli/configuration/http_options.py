"""Options of the HTTP server for metrics and probes, for the long-running processes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from bookie.runtime.telemetry.status_server import StatusServerSettings

HttpPortOption = Annotated[
    int | None,
    typer.Option(min=0, max=65535, help="Port of /metrics, /livez, /readyz; 0 picks a free one; default: none."),
]
HttpHostOption = Annotated[str, typer.Option(help="Address to serve metrics and probes on.")]
HttpTlsCertOption = Annotated[Path | None, typer.Option(help="PEM file: metrics over TLS, with --http-tls-key.")]
HttpTlsKeyOption = Annotated[Path | None, typer.Option(help="PEM file, with --http-tls-cert.")]
HttpTlsClientCaOption = Annotated[
    Path | None, typer.Option(help="PEM file: metrics for clients with its certificates alone; probes for all.")
]


def http_settings(
    port: int | None, host: str, cert: Path | None, key: Path | None, client_ca: Path | None
) -> StatusServerSettings | None:
    """The values of the options; None without a port."""
    from bookie.runtime.telemetry.status_server import StatusServerSettings

    return None if port is None else StatusServerSettings(port, host, cert, key, client_ca)
