"""Command line options of the HTTP server for metrics and probes, for processes that use argparse."""

from __future__ import annotations

import argparse
from pathlib import Path

from bookie.runtime.telemetry.status_server import StatusServerSettings


def add_http_options(parser: argparse.ArgumentParser) -> None:
    """Add the options to ``parser``."""
    parser.add_argument("--http-port", type=int, help="port of /metrics, /livez, /readyz; 0: any; default: none")
    parser.add_argument("--http-host", default="127.0.0.1", help="address to serve them on; default %(default)s")
    parser.add_argument("--http-tls-cert", type=Path, help="PEM file; serve them over TLS, with --http-tls-key")
    parser.add_argument("--http-tls-key", type=Path)
    parser.add_argument(
        "--http-tls-client-ca", type=Path, help="PEM file; metrics for clients with its certificates alone"
    )


def http_settings(given: argparse.Namespace) -> StatusServerSettings | None:
    """Return the settings in parsed options, or None without a port."""
    if given.http_port is None:
        return None
    return StatusServerSettings(
        given.http_port, given.http_host, given.http_tls_cert, given.http_tls_key, given.http_tls_client_ca
    )
