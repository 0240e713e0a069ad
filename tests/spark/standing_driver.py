"""``bkheal_audit.py`` with a pause after it has listed the bookies for the n-th time, until a file appears.

A Python with bkheal from a wheel runs this file by its path: ``standing_driver.py N FILE AUDIT_ARGUMENT...``.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import spark_jobs
from bookie.metadata.bookies.registration import Bookies
from spark_jobs.audit import main
from spark_jobs.runs.cluster_view import ClusterView

PAUSED_LINE = "the bookies are listed"
_POLL_S = 0.05


def _pause_at(count: int, go: Path) -> None:
    listed = ClusterView.bookies
    listings = 0

    def bookies(self: ClusterView) -> Bookies:
        nonlocal listings
        found = listed(self)
        listings += 1
        if listings == count:
            sys.stdout.write(f"{PAUSED_LINE}, code of {Path(spark_jobs.__file__).parent}\n")
            sys.stdout.flush()
            while not go.exists():
                time.sleep(_POLL_S)
        return found

    ClusterView.bookies = bookies  # type: ignore[method-assign]


if __name__ == "__main__":
    _pause_at(int(sys.argv[1]), Path(sys.argv[2]))
    sys.exit(main(sys.argv[3:]))
