"""``python -m tests.fuzzing [--inputs N] [--seed S] [TARGET ...]``: try N inputs, divided among the targets."""

import sys

from tests.fuzzing.command import main

if __name__ == "__main__":
    sys.exit(main())
