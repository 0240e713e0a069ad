"""Locks for one run of a kind at a time, in the service or as a one-shot run.

``/bkheal/runs/<root>/locks/<kind>`` is ephemeral and names the run allowed to mark. A dry run marks nothing, so it has
another lock, ``locks/<kind>-dry``: a marking run never waits for a dry run. A lock only saves work: two concurrent runs
would mark the same ledgers twice, which changes nothing. It also shows that the run's process is alive.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Final

from bookie.metadata.nodes import WRITE_ATTEMPTS_MAX, create_with_parents, find, reread
from bookie.metadata.own_state import own_path
from bookie.metadata.port import (
    BadVersionError,
    MetadataStore,
    Node,
    NodeExistsError,
    NoNodeError,
    SessionState,
    WriteOutcomeUnknownError,
)
from bookie.model.errors import ConflictError
from bookie.model.records import UnreadableRecordError, decode_record, encode_record
from bookie.model.run import RunKind

_DRY: Final = "-dry"


class RunLockedError(ConflictError):
    """A run of this kind is under way."""

    def __init__(self, lane: RunLane, holder: LockHolder) -> None:
        what = f"dry run of kind {lane.kind.value}" if lane.is_dry_run else f"{lane.kind.value} run"
        super().__init__(
            f"a {what} is already under way: {holder.run_id or 'id unknown'} in "
            f"{holder.process or 'an unknown process'}; wait for its end (--wait), or cancel it with "
            f"`bkheal audit cancel {holder.run_id or 'RUN'}`"
        )
        self.lane = lane
        self.holder = holder


@dataclass(frozen=True, slots=True)
class LockHolder:
    """Who holds the lock of a kind."""

    run_id: str
    process: str


@dataclass(frozen=True, slots=True)
class RunLane:
    """Runs that exclude each other: the marking runs of a kind, or its dry runs."""

    kind: RunKind
    is_dry_run: bool = False

    @property
    def name(self) -> str:
        """The name of its lock."""
        return f"{self.kind.value}{_DRY if self.is_dry_run else ''}"


class RunLease:
    """The lock of a lane, held for one run. It ends with its session in any case (S14)."""

    def __init__(self, locks: RunLocks, lane: RunLane, run_id: str, czxid: int, epoch: int) -> None:
        self._locks = locks
        self.lane = lane
        self.run_id = run_id
        self.czxid = czxid
        self.epoch = epoch

    @property
    def is_held(self) -> bool:
        """Whether its session still lives; may be called from any thread."""
        return self._locks.is_current_epoch(self.epoch)

    async def release(self) -> None:
        """Delete the lock, so that the next run can begin. Never deletes a lock of another session or run. Idempotent.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; release again, or wait for the end of the
                session.
        """
        await self._locks.release(self)


class RunLocks:
    """The locks of one cluster. Use one instance per store: it separates the runs of one session."""

    def __init__(self, store: MetadataStore, ledgers_root: str) -> None:
        self._store = store
        self._locks_path = f"{own_path('runs', ledgers_root)}/locks"
        self._held: dict[RunLane, RunLease] = {}

    def is_current_epoch(self, epoch: int) -> bool:
        """Whether the session of this epoch is still the store's."""
        session = self._store.session
        return session.epoch == epoch and session.state is not SessionState.LOST

    async def acquire(self, lane: RunLane, run_id: str, process: str) -> RunLease:
        """Take the lock of a lane; it lives until released, or until the store's session ends.

        Raises:
            RunLockedError: a run of this kind is under way, in this process or another.
            StoreUnavailableError: no answer; no lock is left.
            WriteOutcomeUnknownError: no answer; a lock may remain until a repeated call or the end of the session.
        """
        if (held := self._held.get(lane)) is not None and held.is_held:
            raise RunLockedError(lane, LockHolder(held.run_id, process))
        path = self._lock_path(lane)
        data = encode_record(LockHolder(run_id, process))
        for _ in range(WRITE_ATTEMPTS_MAX):
            epoch = self._store.session.epoch
            with contextlib.suppress(NodeExistsError, WriteOutcomeUnknownError):
                await create_with_parents(self._store, path, data, "/", is_ephemeral=True)
            node = await reread(self._store, path)
            if node is None or not self.is_current_epoch(epoch):
                continue
            if node.stat.ephemeral_owner != self._store.session.session_id:
                raise RunLockedError(lane, _holder(node.data))
            if node.data == data:
                self._held[lane] = RunLease(self, lane, run_id, node.stat.czxid, epoch)
                return self._held[lane]
            if (other := self._held.get(lane)) is not None and other.is_held:  # two concurrent calls of this process
                raise RunLockedError(lane, _holder(node.data))
            await self._drop(path, node)  # from an earlier attempt of this session whose answer was lost
        raise WriteOutcomeUnknownError(f"locking {lane.name} runs: the outcome of every attempt is unknown; try again")

    async def release(self, lease: RunLease) -> None:
        """Delete the lock if it is still the node of this run. Idempotent."""
        path = self._lock_path(lease.lane)
        for _ in range(WRITE_ATTEMPTS_MAX):
            if not lease.is_held:
                break
            node = await reread(self._store, path)
            if node is None or node.stat.czxid != lease.czxid or not lease.is_held:  # it may end during the read
                break
            if await self._drop(path, node):
                break
        else:
            raise WriteOutcomeUnknownError(f"releasing the lock of {lease.lane.name} runs: try again")
        if self._held.get(lease.lane) is lease:
            del self._held[lease.lane]

    async def holder(self, lane: RunLane) -> LockHolder | None:
        """Return the holder of a lane's lock; None if nothing runs.

        Raises:
            StoreUnavailableError: no answer.
        """
        node = await find(self._store, self._lock_path(lane))
        return None if node is None else _holder(node.data)

    async def wait_lane_free(self, lane: RunLane) -> None:
        """Return once the lock of a lane is free.

        Raises:
            StoreUnavailableError: no answer, or the session was lost while waiting.
        """
        path = self._lock_path(lane)
        while (stat := await self._store.stat(path)) is not None:
            await self._store.wait_node_changed(path, stat)

    async def _drop(self, path: str, node: Node) -> bool:
        """Delete a lock of this session; return whether it is certainly deleted."""
        try:
            await self._store.delete(path, node.stat.version)
        except (NoNodeError, BadVersionError, WriteOutcomeUnknownError) as error:
            return isinstance(error, NoNodeError)
        return True

    def _lock_path(self, lane: RunLane) -> str:
        return f"{self._locks_path}/{lane.name}"


def _holder(data: bytes) -> LockHolder:
    try:
        return decode_record(data, LockHolder)
    except UnreadableRecordError:
        return LockHolder("", "")
