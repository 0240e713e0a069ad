"""``python -m tests.faults [--minutes N] [--seed S] [--directory DIR]``."""

import sys

from bookie.runtime.grpc_environment import prepare_grpc
from tests.faults.command import main

if __name__ == "__main__":
    prepare_grpc()
    sys.exit(main())
