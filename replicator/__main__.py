"""``python -m replicator``: start a replicator without loading the other parts of bkheal."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bookie.metadata.access import current_access
from bookie.model.exit_codes import ExitCode
from bookie.runtime.configuration.options import add_options, build, values_in
from bookie.runtime.configuration.settings import ConfigurationError, read_config, resolve_metadata_uri
from bookie.runtime.logs import setup_logging
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
        current_access()
        settings = build(
            ReplicatorSettings,
            values_in(given, ReplicatorSettings),
            metadata_uri=resolve_metadata_uri(given.metadata_uri, os.environ, given.config),
            is_output_json=given.output == "json",
        )
    except ConfigurationError as error:
        sys.stderr.write(f"{error}\n")
        return ExitCode.CONFIGURATION
    _warn_of_options(given.config)
    return asyncio.run(run_replicator(settings))


def _warn_of_options(flag_file: Path | None) -> None:
    """Warn if the configuration file has replicator options, which have no effect in this command."""
    if flag_file is not None and _TABLE in read_config(flag_file):
        _log.warning(
            "this command ignores options in the configuration file; start `bkheal replicator` to use them",
            extra={"path": str(flag_file), "table": _TABLE},
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m replicator", description="Repair ledgers that are marked for it.")
    parser.add_argument("--metadata-uri", help="the cluster, such as 'zk://host1:2181;host2:2181/ledgers'")
    parser.add_argument(
        "--config", type=Path, help="file that names the cluster; see `bkheal replicator` for options in it"
    )
    add_options(parser, ReplicatorSettings)
    parser.add_argument(
        "--output",
        choices=("text", "json"),
        default="text",
        help="format of standard output: lines for people, or JSON",
    )
    parser.add_argument("--log-level", default="INFO", choices=("DEBUG", "INFO", "WARNING", "ERROR"))
    return parser


if __name__ == "__main__":
    sys.exit(main())
