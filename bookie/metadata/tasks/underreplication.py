"""Under-replication tasks: mark, list, lock, complete, and the cluster-wide switches.

The invariant: bkheal deletes a task only together with the lock under which it was read, and only if the task is still
the same node at the same version (S5). Everything else adds: marking creates a task or merges bookies into it. The tree
is Apache's, so its auditors and workers share the same tasks, locks and switches.

Any number of processes may mark and complete at once. Each mark is a create or a compare-and-set, repeated after a
conflict; a task that already names all the bookies is not touched (``marking``). A worker creates the lock first and
reads the task then. A mark that arrives during the repair changes the task's version, so the completion fails and the
task stays (R13).

A crash while many ledgers are marked leaves a part of them marked, and the next audit marks the rest (R21, R22). A
crash of a worker leaves the task; the lock ends with the session (S14). If the answer to a lock request is lost, a lock
may remain, and the next attempt of this process finds it (``locks``). While the ``disable`` node exists, audits do not
mark and workers do not copy: they read it before each batch and each chunk (S7).

Sources: docs/formats.md#under-replication; R rules are defined in docs/failure-model.md, S rules in docs/invariants.md.
"""

from __future__ import annotations

import builtins
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bookie.metadata.cluster import Cluster
from bookie.metadata.layout import (
    LAYOUT,
    UNDERREPLICATION,
    disable_path,
    lock_path,
    locks_path,
    lost_bookie_delay_path,
    task_ledger_id,
    task_level_names,
    task_path,
    tasks_path,
)
from bookie.metadata.nodes import create_with_parents, ensure_path, find, put, reread
from bookie.metadata.port import (
    Check,
    Children,
    Delete,
    MetadataStore,
    Node,
    NodeExistsError,
    NoNodeError,
    WriteOutcomeUnknownError,
)
from bookie.metadata.tasks.format import TASKS_LAYOUT, UnreadableTaskError, decode_task, is_tasks_layout
from bookie.metadata.tasks.locks import HeldLock, HeldTask, Task, TaskLocks
from bookie.metadata.tasks.marking import TaskMarking
from bookie.model.errors import ConflictError, PermanentError
from bookie.model.ids import BookieId, LedgerId
from bookie.runtime.clock import Clock

__all__ = [
    "AlreadyDisabledError",
    "AlreadyEnabledError",
    "HeldLock",
    "HeldTask",
    "IncompatibleTasksError",
    "InvalidDelayError",
    "Task",
    "UnderReplication",
    "UnreadableTask",
    "UnreadableTaskError",
]

_log = logging.getLogger(__name__)

_TREE_LEVELS: Final = 4
_DECODED_AT_ONCE: Final = 10_000
"""Tasks between two turns of the loop: large enough that bulk reads stay bulk, a tenth of a second of decoding."""


class AlreadyDisabledError(ConflictError):
    """Auto-recovery is disabled already."""


class AlreadyEnabledError(ConflictError):
    """Auto-recovery is enabled already."""


class IncompatibleTasksError(PermanentError):
    """The tree of tasks is of a kind or version that this project does not know."""


class InvalidDelayError(PermanentError):
    """The delay for lost bookies is not a number of seconds."""


@dataclass(frozen=True, slots=True)
class UnreadableTask:
    """A task that cannot be read: a finding. Its ledger is marked, for unknown bookies."""

    ledger_id: LedgerId
    reason: str


class UnderReplication:
    """The under-replication tasks of one cluster. Use one instance per store (see ``TaskLocks``)."""

    def __init__(self, store: MetadataStore, cluster: Cluster, clock: Clock) -> None:
        self._store = store
        self._root = cluster.root
        self._marking = TaskMarking(store, cluster.root, clock)
        self._locks = TaskLocks(store, cluster.root)

    async def initialize(self) -> None:
        """Create base, LAYOUT, ``ledgers`` and ``locks`` if they are missing. Idempotent.

        Raises:
            IncompatibleTasksError: LAYOUT names another kind or version of tree.
            NoNodeError: the cluster's root does not exist.
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; initializing again is safe.
        """
        layout = f"{self._root}/{UNDERREPLICATION}/{LAYOUT}"
        try:
            await create_with_parents(self._store, layout, TASKS_LAYOUT, self._root)
        except (NodeExistsError, WriteOutcomeUnknownError):
            node = await reread(self._store, layout)
            if node is None:
                raise
            if not is_tasks_layout(node.data):
                raise IncompatibleTasksError(
                    f"{layout} says {node.data[:100]!r}: expected type BASIC, version 1"
                ) from None
        await ensure_path(self._store, tasks_path(self._root), self._root)
        await ensure_path(self._store, locks_path(self._root), self._root)

    async def mark(self, ledger_id: LedgerId, missing: Sequence[BookieId]) -> None:
        """Mark one ledger, or add to its mark; no change if the mark names all of ``missing`` already.

        Raises:
            UnreadableTaskError: its task exists and is unreadable; it was not touched.
            StoreUnavailableError, WriteOutcomeUnknownError, ConflictError: not marked for sure; mark again.
        """
        await self._marking.mark(ledger_id, missing)

    async def mark_many(self, findings: Sequence[tuple[LedgerId, Sequence[BookieId]]]) -> int:
        """Mark many ledgers in batches, in the order given; how many tasks were created or changed.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError, ConflictError: part of them is marked; mark all again.
        """
        return await self._marking.mark_many(findings)

    async def list(self) -> builtins.list[Task]:
        """Return every task that can be read, by ledger id; the others are logged.

        Raises:
            StoreUnavailableError: no answer.
        """
        return [task for task in await self._scan() if isinstance(task, Task)]

    async def list_all(self) -> builtins.list[Task | UnreadableTask]:
        """Return every task, readable or not, by ledger id; gives way to others between parts of a long list.

        Raises:
            StoreUnavailableError: no answer.
        """
        return await self._scan()

    async def top(self) -> Children | None:
        """Return the top of the tree of tasks, for ``wait_top_changed``; None if there is no tree.

        Raises:
            StoreUnavailableError: no answer.
        """
        try:
            return await self._store.children(tasks_path(self._root))
        except NoNodeError:
            return None

    async def wait_top_changed(self, seen: Children) -> None:
        """Return when the top of the tree is another than ``seen``: the first task of an empty tree changes it.

        Branches without tasks are removed. A task that comes beside others may leave the top as it is.

        Raises:
            StoreUnavailableError: the session was lost while waiting.
        """
        await self._store.wait_children_changed(tasks_path(self._root), seen)

    async def read(self, ledger_id: LedgerId) -> Task | None:
        """Return a ledger's task, None if it is not marked.

        Raises:
            UnreadableTaskError: it is marked, and the task cannot be read.
            StoreUnavailableError: no answer.
        """
        try:
            node = await self._store.get(task_path(self._root, ledger_id))
        except NoNodeError:
            return None
        data = decode_task(node.data)
        return Task(ledger_id, data.missing, data.ctime_ms, node.stat.version)

    async def read_many(self, ledger_ids: Sequence[LedgerId]) -> builtins.list[Task | UnreadableTask | None]:
        """Return the tasks of many ledgers, None for each that is not marked. Not one point in time.

        Raises:
            StoreUnavailableError: no answer.
        """
        nodes = await self._store.get_many([task_path(self._root, ledger_id) for ledger_id in ledger_ids])
        return [_task(ledger_id, node) for ledger_id, node in zip(ledger_ids, nodes, strict=True)]

    async def locked(self) -> frozenset[LedgerId]:
        """Ledgers with a lock, of this process or another.

        Raises:
            StoreUnavailableError: no answer.
        """
        return await self._locks.locked()

    async def lock(self, ledger_id: LedgerId, owner: str) -> HeldTask | None:
        """Take the lock of a marked ledger; it lives until released, or until the store's session ends.

        Args:
            ledger_id: the ledger.
            owner: host name of this process, for people to read.

        Returns:
            The task as it is under the lock. None if the lock is taken, also by another user of this process, or if the
            ledger is not marked; then no lock remains.

        Raises:
            UnreadableTaskError: the task cannot be read; no lock is left.
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; locking again settles what is left.
        """
        return await self._locks.lock(ledger_id, owner)

    async def complete(self, held: HeldTask, checks: Sequence[Check | Delete] = ()) -> bool:
        """Delete the task if it is the one seen under the lock and the lock is ours (S5), and release the lock.

        Args:
            held: the task.
            checks: what else the verdict was made from, such as the version of the ledger's metadata (I18), and what
                is to be deleted with the task; part of the same transaction.

        Returns:
            True if the task was deleted. False if it was marked again, one of ``checks`` fails, or the lock is not ours
            any more: it stays.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; release the lock. Done or not, the next holder
                sees it.
        """
        return await self._locks.complete(held, checks)

    async def release(self, held: HeldTask) -> None:
        """Release the lock if it is still the node of this session; never another owner's. Idempotent.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; release again, or let the session's end do it.
        """
        await self._locks.release(held)

    async def lock_alone(self, ledger_id: LedgerId, owner: str) -> HeldLock | None:
        """Take the lock of a ledger, marked or not, as Apache's collectors do; None if it is taken.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; a lock that was made ends with the session.
        """
        return await self._locks.lock_alone(ledger_id, owner)

    async def release_alone(self, held: HeldLock) -> None:
        """Release a lock of ``lock_alone``, if it is still the node that this session created. Idempotent.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; the end of the session releases it.
        """
        await self._locks.release_alone(held)

    def lock_check(self, ledger_id: LedgerId) -> Check:
        """Part of a transaction that is to happen only while the ledger is locked."""
        return Check(lock_path(self._root, ledger_id))

    async def is_disabled(self) -> bool:
        """Whether auto-recovery is disabled cluster-wide (S7).

        Raises:
            StoreUnavailableError: no answer.
        """
        return await self._store.stat(disable_path(self._root)) is not None

    async def disable(self) -> None:
        """Disable auto-recovery cluster-wide, for Apache's workers as well.

        Raises:
            AlreadyDisabledError: it is.
            StoreUnavailableError, WriteOutcomeUnknownError: no answer.
        """
        path = disable_path(self._root)
        try:
            await create_with_parents(self._store, path, b"", self._root)
        except NodeExistsError as error:
            raise AlreadyDisabledError(f"auto-recovery of {self._root} is disabled already") from error
        except WriteOutcomeUnknownError:
            if await reread(self._store, path) is None:
                raise

    async def enable(self) -> None:
        """Enable auto-recovery again.

        Raises:
            AlreadyEnabledError: it is.
            StoreUnavailableError, WriteOutcomeUnknownError: no answer.
        """
        path = disable_path(self._root)
        try:
            await self._store.delete(path)
        except NoNodeError as error:
            raise AlreadyEnabledError(f"auto-recovery of {self._root} is enabled already") from error
        except WriteOutcomeUnknownError:
            if await reread(self._store, path) is not None:
                raise

    async def wait_enabled(self) -> None:
        """Return once auto-recovery is enabled.

        Raises:
            StoreUnavailableError: no answer, or the session was lost while waiting.
        """
        path = disable_path(self._root)
        while (stat := await self._store.stat(path)) is not None:
            await self._store.wait_node_changed(path, stat)

    async def lost_bookie_delay_s(self) -> int:
        """Seconds to wait before a lost bookie's ledgers are marked; 0 if it was never set.

        Raises:
            InvalidDelayError: what is stored is not a number of seconds.
            StoreUnavailableError: no answer.
        """
        path = lost_bookie_delay_path(self._root)
        node = await find(self._store, path)
        if node is None:
            return 0
        if not node.data.isdigit() or len(node.data) > 10:
            raise InvalidDelayError(f"{path} says {node.data[:40]!r}, not a number of seconds: set the delay again")
        return int(node.data)

    async def set_lost_bookie_delay_s(self, seconds: int) -> None:
        """Set the delay. Setting the value that it has makes Apache's auditor start an audit.

        Raises:
            InvalidDelayError: ``seconds`` is negative or more than a signed 32-bit number holds.
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; setting it again is safe.
        """
        if not 0 <= seconds < 1 << 31:
            raise InvalidDelayError(f"not a delay in seconds: {seconds} (0 to 2147483647)")
        path, data = lost_bookie_delay_path(self._root), str(seconds).encode()
        await put(self._store, path, data, self._root)

    async def _scan(self) -> builtins.list[Task | UnreadableTask]:
        paths = [tasks_path(self._root)]
        await self._store.sync(paths[0])
        for _ in range(_TREE_LEVELS):
            paths = [path for parent, names in await self._names(paths) for path in _below(parent, names)]
        ids = [task_ledger_id(name) for _, names in await self._names(paths) for name in names]
        ordered = sorted(ledger_id for ledger_id in ids if ledger_id is not None)
        found: builtins.list[Task | UnreadableTask] = []
        for start in range(0, len(ordered), _DECODED_AT_ONCE):
            found += await self._read_part(ordered[start : start + _DECODED_AT_ONCE])
        return found

    async def _read_part(self, ledger_ids: builtins.list[LedgerId]) -> builtins.list[Task | UnreadableTask]:
        found = await self.read_many(ledger_ids)
        return [task for task in found if task is not None]  # the others were completed in the meantime

    async def _names(self, paths: builtins.list[str]) -> builtins.list[tuple[str, tuple[str, ...]]]:
        listings = await self._store.children_many(paths)
        return [(path, found.names) for path, found in zip(paths, listings, strict=True) if found is not None]


def _task(ledger_id: LedgerId, node: Node | None) -> Task | UnreadableTask | None:
    if node is None:
        return None
    try:
        data = decode_task(node.data)
    except UnreadableTaskError as error:
        _log.warning("task cannot be read", extra={"ledger_id": ledger_id, "error": str(error)})
        return UnreadableTask(ledger_id, str(error))
    return Task(ledger_id, data.missing, data.ctime_ms, node.stat.version)


def _below(parent: str, names: tuple[str, ...]) -> list[str]:
    return [f"{parent}/{name}" for name in task_level_names(names)]
