"""The snapshot of one run, which an admin server of ZooKeeper sends. It is requested once, and removed at the end."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import Final

from spark_jobs.runs.context import RunContext
from spark_jobs.runs.port import Phase
from spark_jobs.snapshot.errors import SnapshotError
from spark_jobs.snapshot.index import SnapshotIndex
from spark_jobs.snapshot.streaming import AdminServer, read_authorization, stream_snapshot

_log = logging.getLogger(__name__)

_NAME: Final = ".snapshot-"
_LEFT_S: Final = 86_400.0
"""A file left by a run that SIGKILL ended is removed after this time. Files of active runs are younger."""


class StreamedSnapshot:
    """The snapshot of one run. Belongs to the run's thread. Call ``remove`` at the end."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._file = (context.settings.report_dir / f"{_NAME}{context.run_id}").resolve()
        self._index: SnapshotIndex | None = None

    def index(self) -> SnapshotIndex:
        """Return the snapshot. Only the first call requests it, because a server makes few snapshots.

        Raises:
            SnapshotError: the snapshot cannot be used or stored.
            StoreUnavailableError: the server does not answer, or makes no snapshot yet.
        """
        if self._index is not None:
            return self._index
        context, settings = self._context, self._context.settings
        server = AdminServer(
            settings.snapshot_url,
            read_authorization(settings.snapshot_authorization_file, os.environ),
            settings.snapshot_ca,
        )
        context.begin(Phase.PLAN)
        newest_zxid = context.cluster.newest_zxid()
        self.remove()
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SnapshotError(f"the snapshot cannot be stored in {self._file.parent}: {error.strerror}") from error
        _remove_left(self._file.parent, context.clock.epoch_ms() / 1000)
        cluster, may_go_on = context.cluster.cluster, context.gate.pass_through
        self._index = stream_snapshot(server, self._file, cluster, newest_zxid, may_go_on, context.clock)
        return self._index

    def remove(self) -> None:
        """Remove the file of the snapshot."""
        with contextlib.suppress(FileNotFoundError):
            self._file.unlink()


def _remove_left(directory: Path, now_s: float) -> None:
    for path in directory.glob(f"{_NAME}*"):
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < now_s - _LEFT_S:
                path.unlink()
                _log.info("a snapshot of a run that did not end was removed", extra={"file": str(path)})
