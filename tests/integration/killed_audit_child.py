"""``bkheal audit``, but it pauses after half of its findings are marked, until it is killed."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence

from bookie.runtime.grpc_environment import prepare_grpc
from spark_jobs.audit import main
from spark_jobs.runs.cluster_view import ClusterView
from spark_jobs.runs.marking.publish import Marking

PAUSED_LINE = "half of the findings are marked"


def _mark_half_of_it() -> None:
    mark = ClusterView.mark

    def mark_half(self: ClusterView, batch: Sequence[Marking]) -> int | None:
        mark(self, batch[: len(batch) // 2])
        sys.stdout.write(f"{PAUSED_LINE}\n")
        sys.stdout.flush()
        threading.Event().wait()
        return None

    ClusterView.mark = mark_half  # type: ignore[method-assign]


if __name__ == "__main__":
    prepare_grpc()
    _mark_half_of_it()
    sys.exit(main(sys.argv[1:]))
