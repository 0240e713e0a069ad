"""``python -m tests.rings``."""

from tests.rings.command import main

if __name__ == "__main__":
    main()
