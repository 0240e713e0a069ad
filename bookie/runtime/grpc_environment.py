"""Environment variables for gRPC. A program must set them before it loads gRPC."""

from __future__ import annotations

import os


def prepare_grpc() -> None:
    """Configure gRPC for this process and its children; existing variables take precedence."""
    # gRPC would print its own lines about failures, less helpful than our errors.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # gRPC's fork handlers restart its threads in a forked child, and sometimes abort the child before it executes its
    # program. PySpark starts Java in this way. No code here uses gRPC in a forked child.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
