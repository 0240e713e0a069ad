"""What gRPC is told through the environment. It reads that when it is first loaded, so a program says it before."""

from __future__ import annotations

import os


def prepare_grpc() -> None:
    """Set how gRPC behaves in this process and its children; what an operator has set already wins."""
    # It would print lines of its own about failures that our errors tell better.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # In a forked child its handlers wind gRPC's threads up anew, and now and then abort the child before it becomes the
    # program it was forked for: PySpark starts Java in that way. Nothing here uses gRPC in a forked child.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
