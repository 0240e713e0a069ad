"""Environment variables for gRPC. It reads them when it is first loaded, so a program sets them before."""

from __future__ import annotations

import os


def prepare_grpc() -> None:
    """Set how gRPC behaves in this process and its children; what an operator has set already wins."""
    # It would print lines of its own about failures for which our errors are better.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # In a forked child its handlers start gRPC's threads again, and now and then abort the child before it becomes the
    # intended program: PySpark starts Java in this way. Nothing here uses gRPC in a forked child.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
