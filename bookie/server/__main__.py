"""``python -m bookie.server``: a bookie process with few options and few imports, for a quick start."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # grpc, loaded later, would print its own lines

from bookie.metadata.access import current_access
from bookie.model.exit_codes import ExitCode
from bookie.runtime.configuration.options import add_options, build, values_in
from bookie.runtime.configuration.settings import ConfigurationError
from bookie.runtime.logs import setup_logging
from bookie.server.main import run_bookie
from bookie.server.settings import BookieSettings


def main() -> int:
    """Run a bookie from the command line."""
    options = _parser().parse_args()
    setup_logging(logging.WARNING)
    try:
        current_access()
        settings = build(BookieSettings, values_in(options, BookieSettings), metadata_uri=options.metadata_uri)
    except ConfigurationError as error:
        sys.stderr.write(f"bookie: {error}\n")
        return ExitCode.CONFIGURATION
    return asyncio.run(run_bookie(settings))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bookie.server", description="Run one bookie.")
    parser.add_argument("--metadata-uri", required=True, help="zk+hierarchical://host:2181/ledgers")
    add_options(parser, BookieSettings)
    return parser


if __name__ == "__main__":
    sys.exit(main())
