"""``python -m replicator``: the replicator with nothing else loaded."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bookie.model.exit_codes import ExitCode
from bookie.model.spread import InvalidPolicyError, PlacementPolicy
from bookie.runtime.configuration.settings import ConfigurationError, read_config, resolve_metadata_uri
from bookie.runtime.logs import setup_logging
from bookie.runtime.telemetry.http_options import add_http_options, http_settings
from bookie.wire.security import SaslMechanism, SecurityFiles
from replicator.main import run_replicator
from replicator.settings import ReplicatorSettings

_log = logging.getLogger(__name__)

_TABLE: Final = "replicator"


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse ``arguments`` (default: the command line), run, and return the exit code."""
    parser = _parser()
    given = parser.parse_args(arguments)
    setup_logging(given.log_level)
    try:
        settings = ReplicatorSettings(
            metadata_uri=resolve_metadata_uri(given.metadata_uri, os.environ, given.config),
            ledgers_in_flight=given.ledgers_in_flight,
            copy_bytes_per_second=given.copy_bytes_per_second,
            poll_interval_s=given.poll_interval,
            open_ledger_grace_s=given.open_ledger_grace,
            grace_s=given.grace,
            once=given.once,
            is_output_json=given.output == "json",
            placement=PlacementPolicy(
                given.min_racks, given.min_zones, given.min_regions, is_strict=given.strict_placement
            ),
            topology_file=given.topology_file,
            security=SecurityFiles(
                given.tls_ca,
                given.tls_cert,
                given.tls_key,
                given.sasl_username,
                given.sasl_password_file,
                SaslMechanism(given.sasl_mechanism),
                given.frame_bytes_max,
            ),
            http=http_settings(given),
            has_apache_metrics=given.compat_metrics,
        )
    except (ConfigurationError, InvalidPolicyError) as error:
        sys.stderr.write(f"{error}\n")
        return ExitCode.CONFIGURATION
    _warn_of_options(given.config)
    return asyncio.run(run_replicator(settings))


def _warn_of_options(flag_file: Path | None) -> None:
    """A user who names a file with options for replicators must not believe that they apply here."""
    if flag_file is not None and _TABLE in read_config(flag_file):
        _log.warning(
            "options in the configuration file do not count here, start `bkheal replicator` for that",
            extra={"path": str(flag_file), "table": _TABLE},
        )


def _parser() -> argparse.ArgumentParser:
    default = ReplicatorSettings("unused")
    parser = argparse.ArgumentParser(prog="python -m replicator", description="Repair ledgers that are marked for it.")
    parser.add_argument("--metadata-uri", help="the cluster, such as zk://host1:2181;host2:2181/ledgers")
    parser.add_argument(
        "--config", type=Path, help="file that names the cluster; see `bkheal replicator` for options in it"
    )
    parser.add_argument("--ledgers-in-flight", type=int, default=default.ledgers_in_flight, help="default %(default)s")
    parser.add_argument(
        "--copy-bytes-per-second", type=int, default=default.copy_bytes_per_second, help="0 (default): unlimited"
    )
    parser.add_argument(
        "--poll-interval", type=float, default=default.poll_interval_s, metavar="SECONDS", help="default %(default)s"
    )
    parser.add_argument(
        "--open-ledger-grace",
        type=float,
        default=default.open_ledger_grace_s,
        metavar="SECONDS",
        help="seconds that a bookie of an open ledger may be missing before the ledger is recovered; "
        "default %(default)s",
    )
    parser.add_argument(
        "--grace", type=float, default=default.grace_s, metavar="SECONDS", help="on SIGTERM; default %(default)s"
    )
    for domain in ("racks", "zones", "regions"):
        least = getattr(default.placement, f"min_{domain}")
        text = f"{domain} that each write quorum must span; default {least}"
        parser.add_argument(f"--min-{domain}", type=int, default=least, metavar="N", help=text)
    parser.add_argument("--strict-placement", action="store_true", help="park a ledger rather than break that")
    parser.add_argument(
        "--topology-file", type=Path, help="topology file: the rack of each bookie; default: the topology in ZooKeeper"
    )
    parser.add_argument("--tls-ca", type=Path, help="PEM file: bookies speak TLS, with certificates that it signed")
    parser.add_argument("--tls-cert", type=Path, help="PEM file: this side's certificate, with --tls-ca")
    parser.add_argument("--tls-key", type=Path, help="PEM file: its key")
    parser.add_argument("--sasl-username", default="", help="log in at Apache bookies that ask for it")
    parser.add_argument("--sasl-password-file", type=Path, help="its first line is the password")
    parser.add_argument(
        "--sasl-mechanism",
        choices=[mechanism.value for mechanism in SaslMechanism],
        default=SaslMechanism.DIGEST_MD5.value,
        help="how to log in; default %(default)s",
    )
    parser.add_argument(
        "--frame-bytes-max",
        type=int,
        default=default.security.frame_bytes_max,
        metavar="BYTES",
        help="longest frame of Apache bookies, their nettyMaxFrameSizeBytes; default %(default)s",
    )
    add_http_options(parser)
    parser.add_argument("--compat-metrics", action="store_true", help="also show Apache's replication_worker_*")
    parser.add_argument("--once", action="store_true", help="end when every task is repaired or parked")
    parser.add_argument("--output", choices=("text", "json"), default="text", help="what standard output carries")
    parser.add_argument("--log-level", default="INFO", choices=("DEBUG", "INFO", "WARNING", "ERROR"))
    return parser


if __name__ == "__main__":
    sys.exit(main())
