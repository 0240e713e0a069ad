"""Audit runs in the store, with the result of each, under ``/bkheal/runs/<root>``. See also ``locks`` and ``notes``.

``records/<run_id>`` is one run, kept after its end. The process of the run writes it by compare-and-set from its own
last write. So once another process has declared a run abandoned, the former owner cannot overwrite this.
"""

from __future__ import annotations

import builtins
import logging
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Final

from bookie.metadata.nodes import WRITE_ATTEMPTS_MAX, child_names, create_with_parents, remove, reread
from bookie.metadata.port import (
    BadVersionError,
    MetadataStore,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    WriteOutcomeUnknownError,
)
from bookie.metadata.runs.locks import LockHolder, RunLane, RunLease, RunLockedError, RunLocks
from bookie.metadata.runs.notes import RunNotes
from bookie.model.errors import ConflictError
from bookie.model.records import UnreadableRecordError
from bookie.model.run import RunKind, RunRecord, RunState, decode_run, encode_run, newest_first

__all__ = ["LockHolder", "RunLane", "RunLease", "RunLockedError", "RunTakenError", "Runs"]

_log = logging.getLogger(__name__)

READ_BATCH: Final = 500
"""Number of records read at a time: a record has a few kilobytes at most."""
_UNSETTLED_MAX: Final = 16
"""Maximum number of remembered writes without an answer. They take minutes, longer than a session lives without a
connection."""


class RunTakenError(ConflictError):
    """Another process changed the record of a run: it declared the run abandoned."""


class Runs(RunLocks, RunNotes):
    """Runs of the cluster at ``ledgers_root``: their records, locks and notes. Use one instance per store."""

    def __init__(self, store: MetadataStore, ledgers_root: str) -> None:
        RunLocks.__init__(self, store, ledgers_root)
        RunNotes.__init__(self, store, ledgers_root)
        self._versions: dict[str, int] = {}
        """Version of each record after this process's last write."""
        self._unsettled: dict[str, deque[bytes]] = {}
        """Bytes of writes without an answer: if they are read back, this process wrote them."""

    async def write(self, record: RunRecord) -> None:
        """Create the record of a run of this process, or replace it.

        Raises:
            RunTakenError: another process has changed it; the record was not touched.
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; writing again is safe.
        """
        path, data = self._path("records", record.run_id), encode_run(record)
        ours = self._unsettled.setdefault(record.run_id, deque(maxlen=_UNSETTLED_MAX))
        if data not in ours:  # recorded before the request, because a cancelled caller gets no answer either (R129)
            ours.append(data)
        for _ in range(WRITE_ATTEMPTS_MAX):
            try:
                self._versions[record.run_id] = await self._put_record(path, data, self._versions.get(record.run_id))
                break
            except NoNodeError as error:
                raise RunTakenError(f"the record of run {record.run_id} was removed") from error
            except (NodeExistsError, BadVersionError, WriteOutcomeUnknownError) as error:
                node = await reread(self._store, path)
                if node is None or node.data not in ours:
                    if isinstance(error, WriteOutcomeUnknownError):
                        raise
                    raise RunTakenError(f"the record of run {record.run_id} was changed by another process") from error
                self._versions[record.run_id] = node.stat.version
                if node.data == data:
                    break
        else:
            raise WriteOutcomeUnknownError(f"writing the record of run {record.run_id}: every answer was lost")
        self._unsettled.pop(record.run_id, None)
        if record.state.is_final:
            self._versions.pop(record.run_id, None)

    async def get(self, run_id: str) -> RunRecord | None:
        """Return one run; None if the id is unknown, or its record is unreadable.

        Raises:
            StoreUnavailableError: no answer.
        """
        found = await self._read([run_id]) if _is_name(run_id) else {}
        return found[run_id][0] if run_id in found else None

    async def list(self, limit: int, now_ms: int) -> builtins.list[RunRecord]:
        """Return the newest runs first. A damaged record is logged and left out.

        Args:
            limit: the maximum number of records to read.
            now_ms: the present time; runs dated later than this come last, because a clock was wrong.

        Raises:
            StoreUnavailableError: no answer.
        """
        found = await self._read((await self._ids(now_ms))[:limit])
        return [record for record, _ in found.values()]

    async def wait_changed(self, seen: RunRecord) -> RunRecord | None:
        """Return the record of a run once it differs from ``seen``; None once it is deleted.

        Raises:
            StoreUnavailableError: no answer, or the session was lost while waiting.
        """
        path = self._path("records", seen.run_id)
        while True:
            stat = await self._store.stat(path)
            record = await self.get(seen.run_id)
            if record != seen:
                return record
            await self._store.wait_node_changed(path, stat)

    async def abandon_orphans(self, now_ms: int) -> Sequence[RunRecord]:
        """Mark each unfinished run without a lock as abandoned; return them.

        Records are read before the locks, and replaced only if unchanged since: a run ending at the same time keeps its
        end.

        Raises:
            StoreUnavailableError: no answer; the next call does the rest.
        """
        running = [pair for pair in (await self._read(await self._ids(now_ms))).values() if not pair[0].state.is_final]
        holders = {lane: await self.holder(lane) for lane in {lane_of(record) for record, _ in running}}
        marked = []
        for record, version in running:
            holder = holders[lane_of(record)]
            if holder is not None and holder.run_id == record.run_id:
                continue
            ended = replace(
                record,
                state=RunState.ABANDONED,
                finished_ms=now_ms,
                detail=record.detail or f"its process ({record.process}) ended, or lost its session",
            )
            try:
                await self._store.set(self._path("records", record.run_id), encode_run(ended), version)
                marked.append(ended)
            except (BadVersionError, NoNodeError, WriteOutcomeUnknownError):
                continue
        return marked

    async def prune(self, runs_kept: int, now_ms: int) -> int:
        """Delete all but the newest records, and return the number of deletions. ``now_ms`` is as for ``list``.

        Unfinished runs stay, and the newest complete run of each kind that was not a dry run: its findings are the
        state of the cluster until the next one. The same holds for a check that was complete within a run of
        everything.

        Raises:
            StoreUnavailableError: no answer.
        """
        run_ids = await self._ids(now_ms)
        if len(run_ids) <= runs_kept:
            return 0
        records = [record for record, _ in (await self._read(run_ids)).values()]
        keep = {record.run_id for record in records if not record.state.is_final}
        keep |= {record.run_id for record in _newest_complete(records)}
        gone = [run_id for run_id in run_ids[runs_kept:] if run_id not in keep]
        for run_id in gone:
            try:
                await remove(self._store, self._path("records", run_id))
                await remove(self._store, self._path("requests", run_id))
            except NotEmptyError as error:  # another client created a node below it
                _log.warning("run record is not removed", extra={"run_id": run_id, "reason": str(error)})
        return len(gone)

    async def _ids(self, now_ms: int) -> builtins.list[str]:
        return newest_first(await child_names(self._store, f"{self._base}/records"), now_ms)

    async def _put_record(self, path: str, data: bytes, version: int | None) -> int:
        """Write the record, or create it if ``version`` is None; return its new version."""
        if version is not None:
            return (await self._store.set(path, data, version)).version
        await create_with_parents(self._store, path, data, "/")
        return 0

    async def _read(self, run_ids: Sequence[str]) -> dict[str, tuple[RunRecord, int]]:
        """Records with their versions, in the order of ``run_ids``."""
        found: dict[str, tuple[RunRecord, int]] = {}
        for start in range(0, len(run_ids), READ_BATCH):
            part = run_ids[start : start + READ_BATCH]
            nodes = await self._store.get_many([self._path("records", run_id) for run_id in part])
            for run_id, node in zip(part, nodes, strict=True):
                if node is None:
                    continue
                try:
                    found[run_id] = (decode_run(node.data), node.stat.version)
                except UnreadableRecordError as error:
                    _log.warning("run record is damaged", extra={"run_id": run_id, "reason": str(error)})
        return found


def _newest_complete(records: Iterable[RunRecord]) -> Iterable[RunRecord]:
    """Return the newest complete result of each kind that was not of a dry run; ``records`` begins with the newest."""
    newest: dict[RunKind, RunRecord] = {}
    for record in chain.from_iterable(record.by_check() for record in records):
        if record.is_complete and not record.is_dry_run:
            newest.setdefault(record.kind, record)
    return newest.values()


def lane_of(record: RunRecord) -> RunLane:
    """Return the lane of a run."""
    return RunLane(record.kind, record.is_dry_run)


def _is_name(run_id: str) -> bool:
    """Whether ``run_id`` can be a node name: run ids come from outside."""
    return (
        bool(run_id) and run_id.isascii() and run_id.isprintable() and "/" not in run_id and run_id not in (".", "..")
    )
