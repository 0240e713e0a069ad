"""``python -m tests.sabotage [NAME ...]``: break a copy of the product in known ways and check that the tests fail."""

import sys

from tests.sabotage.command import main

if __name__ == "__main__":
    sys.exit(main())
