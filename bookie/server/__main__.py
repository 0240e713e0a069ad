"""``python -m bookie.server``: a bookie process with few options and few imports, so that it starts quickly."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from pathlib import Path

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # before grpc is loaded: it would print its own lines about failures

from bookie.runtime.logs import setup_logging
from bookie.runtime.telemetry.http_options import add_http_options, http_settings
from bookie.server.main import run_bookie
from bookie.server.settings import DEFAULT_PORT, BookieSettings
from bookie.wire.tls import TlsSettings


def main() -> int:
    """Run a bookie from the command line."""
    parser = _parser()
    options = parser.parse_args()
    if options.tls_ca is None and (options.tls_cert or options.tls_key):
        parser.error("--tls-cert and --tls-key need --tls-ca: clients must show a certificate that it signed")
    setup_logging(logging.WARNING)
    tls = TlsSettings(options.tls_ca, options.tls_cert, options.tls_key) if options.tls_ca else None
    settings = BookieSettings(
        metadata_uri=options.metadata_uri,
        journal_dir=options.journal_dir,
        ledger_dir=options.ledger_dir,
        host=options.host,
        port=options.port,
        apache_port=options.apache_port,
        apache_connections_max=options.apache_connections_max,
        advertised_host=options.advertised_host,
        bookie_id=options.bookie_id,
        tls=tls,
        is_plaintext=options.plaintext,
        read_only_below_bytes=options.read_only_below_bytes,
        session_timeout_s=options.session_timeout,
        connect_timeout_s=options.connect_timeout,
        is_new_incarnation=options.new_incarnation,
        collect_interval_s=options.collect_interval,
        collect_ratio_max=options.collect_ratio_max,
        http=http_settings(options),
    )
    return asyncio.run(run_bookie(settings))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bookie.server", description="Run one bookie.")
    parser.add_argument("--metadata-uri", required=True, help="zk+hierarchical://host:2181/ledgers")
    parser.add_argument("--journal-dir", required=True, type=Path)
    parser.add_argument("--ledger-dir", required=True, type=Path)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--advertised-host", help="host that is published to clients; default: --host")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="0: any free port")
    parser.add_argument(
        "--apache-port",
        type=int,
        help="also speak Apache BookKeeper's protocol on this port, so that Apache's clients and tools can use this "
        "bookie; 0: any free port",
    )
    parser.add_argument(
        "--apache-connections-max", type=int, default=1024, help="connections to --apache-port; one more is closed"
    )
    parser.add_argument("--bookie-id", help="default: the id in the directories, or advertised host and port")
    parser.add_argument("--read-only-below-bytes", type=int, default=1 << 30, help="0: never read-only")
    parser.add_argument("--session-timeout", type=float, default=10.0, help="of the ZooKeeper session, in seconds")
    parser.add_argument("--connect-timeout", type=float, default=15.0, help="to ZooKeeper at the start, in seconds")
    parser.add_argument(
        "--new-incarnation",
        action="store_true",
        help="start on empty directories under a known bookie id: its disks are lost permanently",
    )
    parser.add_argument(
        "--collect-interval", type=float, default=3600.0, help="seconds between passes of the collector; 0: never"
    )
    parser.add_argument(
        "--collect-ratio-max", type=float, default=0.5, help="a pass that would delete more than this stops"
    )
    parser.add_argument("--plaintext", action="store_true", help="no TLS although --host is not a loopback address")
    parser.add_argument("--tls-ca", type=Path, help="PEM file; switches TLS on, with --tls-cert and --tls-key")
    parser.add_argument("--tls-cert", type=Path)
    parser.add_argument("--tls-key", type=Path)
    add_http_options(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
