"""Locks of under-replication tasks, shared with Apache's workers and collectors (docs/formats.md#locks).

The invariant: a process deletes a task only in the state read under its own lock (S5), and releases only locks created
by its session. Among bkheal's own processes a lock only saves work: reservations keep repairs safe without it (S16).
But only the lock keeps the collectors of Apache's bookies away from copies not yet in the metadata.

A worker first creates the lock, an ephemeral node, and then reads the task, so the task is at least as new as the lock.
To complete the task, it reads both nodes again and compares the transactions that created them, because a recreated
node may have the same version. One transaction then deletes the lock and the task at its version, with the caller's
checks. So no other worker finds the task without its lock. If the ledger was marked again, the task has another
version, and it stays.

Apache's workers delete locks without checking the owner, and a collector may then create the lock before bkheal's next
write arrives. So the transaction that creates a lock of bkheal also writes its data once. The lock then has version 1,
and a check of this version fails for a lock of Apache's programs.

If the process dies before the transaction, the task stays and the lock ends with the session (S14). If the answer to
the creation of a lock is lost, the ledger is remembered here, and the next attempt takes over the lock if this session
owns it. If the answer to the completion is lost, both nodes are read again: if neither exists, it was carried out. The
task's directory, which no other ledger uses, is deleted in the same transaction if nothing else is in it. The other
empty parents are deleted afterwards, or later for many tasks at once (``prune``). After a crash they remain, which is
harmless.

S rules are defined in docs/invariants.md.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bookie.metadata.layout import (
    lock_path,
    locks_path,
    parents_of,
    task_directory,
    task_ledger_id,
    task_path,
    tasks_path,
)
from bookie.metadata.nodes import WRITE_ATTEMPTS_MAX, ensure_path, prune
from bookie.metadata.port import (
    BadVersionError,
    Check,
    Create,
    Delete,
    MetadataStore,
    MultiFailedError,
    Node,
    NodeExistsError,
    NoNodeError,
    Operation,
    SetData,
    Stat,
    StoreUnavailableError,
    WriteOutcomeUnknownError,
)
from bookie.metadata.tasks.format import UnreadableTaskError, decode_lock, decode_task, encode_lock
from bookie.model.errors import PermanentError
from bookie.model.ids import BookieId, LedgerId

_log = logging.getLogger(__name__)

LOCK_VERSION: Final = 1
"""Version of every lock created by bkheal. Locks of Apache's programs keep version 0."""


class _Deletion(enum.Enum):
    """The outcome of one attempt to delete a task."""

    DELETED = enum.auto()
    """The task was deleted by this attempt, or by an earlier one whose answer was lost."""
    NOT_DELETED = enum.auto()
    """The task, its lock or another node has changed since it was read. Another attempt would have the same outcome."""
    UNSETTLED = enum.auto()
    """A node changed during the attempt, or the answer was lost: the task must be read again."""


@dataclass(frozen=True, slots=True)
class Task:
    """One marked ledger. A hint, never an instruction: the verdict is computed again from metadata."""

    ledger_id: LedgerId
    missing: tuple[BookieId, ...]
    """Bookies reported lost, in the order of the reports; empty for a placement repair."""
    ctime_ms: int
    """Time of the last mark, epoch milliseconds; -1 if not stored."""
    version: int


@dataclass(frozen=True, slots=True)
class HeldLock:
    """The lock of a ledger, marked or not, as created by this process."""

    ledger_id: LedgerId
    czxid: int
    session_id: int


@dataclass(frozen=True, slots=True)
class HeldTask:
    """A task locked by this process, as seen under the lock."""

    lock: HeldLock
    task: Task
    task_czxid: int
    other_nodes: tuple[Node | None, ...] = ()
    """The other nodes requested in ``lock``, read together with the task under the lock."""


@dataclass(frozen=True, slots=True)
class HeldTaskState:
    """A held task and other nodes, read again after a ``sync``."""

    is_ours: bool
    """Whether the lock is still this session's node."""
    is_same: bool
    """Whether the task is still the same node and version as seen under the lock."""
    nodes: tuple[Node | None, ...]


@dataclass(frozen=True, slots=True)
class SeenNode:
    """A node as read before a decision. A recreated node may have the same version, so a ``Check`` does not suffice."""

    path: str
    czxid: int | None
    """The transaction that created it; None if it does not exist."""

    def is_same(self, node: Node | None) -> bool:
        """Whether ``node``, read at the path again, is the same node, or None if there was no node."""
        return self.czxid == (None if node is None else node.stat.czxid)


class TaskLocks:
    """Locks of one cluster's tasks. One instance per store: it separates the users of one session."""

    def __init__(self, store: MetadataStore, root: str) -> None:
        self._store = store
        self._root = root
        self._holders: dict[LedgerId, int] = {}
        """Ledgers locked through this instance, with the session of each lock. The lock ends with its session."""
        self._left_behind: set[LedgerId] = set()
        """Ledgers with a lock perhaps left by this session after a lost answer; the next attempt takes it over."""
        self._unreleased: set[LedgerId] = set()
        """Ledgers whose lock was not released, because there was no answer or the caller was cancelled."""
        self._branches: set[str] = set()
        """Parents of completed tasks' directories, perhaps empty now."""

    @property
    def may_remain(self) -> bool:
        """Whether this session may have a lock that no user of this instance holds any more.

        It keeps all workers from its ledger until it is released by a later call, or until the session ends.
        """
        return bool(self._unreleased or self._left_behind - self._holders.keys())

    async def locked(self) -> frozenset[LedgerId]:
        """Return the ledgers with a lock of any process.

        Raises:
            StoreUnavailableError: no answer.
        """
        try:
            names = (await self._store.children(locks_path(self._root))).names
        except NoNodeError:
            return frozenset()
        ids = [task_ledger_id(name) for name in names]
        return frozenset(ledger_id for ledger_id in ids if ledger_id is not None)

    async def locked_among(self, ledger_ids: Sequence[LedgerId]) -> frozenset[LedgerId]:
        """Return those of ``ledger_ids`` with a lock of any process.

        Raises:
            StoreUnavailableError: no answer.
        """
        found = await self._store.get_many_data([lock_path(self._root, ledger_id) for ledger_id in ledger_ids])
        return frozenset(ledger_id for ledger_id, data in zip(ledger_ids, found, strict=True) if data is not None)

    async def owners(self) -> dict[LedgerId, str]:
        """Return the ledgers with a lock, and the owner's name in it; empty if unreadable.

        Raises:
            StoreUnavailableError: no answer.
        """
        ids = sorted(await self.locked())
        found = await self._store.get_many_data([lock_path(self._root, ledger_id) for ledger_id in ids])
        return {ledger_id: decode_lock(data) for ledger_id, data in zip(ids, found, strict=True) if data is not None}

    async def lock(self, ledger_id: LedgerId, owner: str, other_nodes: Sequence[str] = ()) -> HeldTask | None:
        """Take the lock of a marked ledger; it lives until released, or until the store's session ends.

        Args:
            ledger_id: the ledger.
            owner: host name of this process, for display.
            other_nodes: paths of other nodes to read under the lock, in the same request as the task.

        Returns:
            The task as it is under the lock. None if the lock is taken (also by another user in this process), or if
            the ledger is not marked; then no lock remains.

        Raises:
            UnreadableTaskError: the task cannot be read; no lock is left.
            AccessDeniedError: an ACL forbids a read; no lock is left.
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; locking again takes over a remaining lock.
        """
        lock, nodes = await self._take(ledger_id, owner, other_nodes)
        if lock is None:
            return None
        task, *others = nodes
        try:
            if task is not None:
                data = decode_task(task.data)
                seen = Task(ledger_id, data.missing, data.ctime_ms, task.stat.version)
                return HeldTask(lock, seen, task.stat.czxid, tuple(others))
        except UnreadableTaskError:
            await self._release_new(lock)
            raise
        await self._release_new(lock)
        return None

    async def lock_unmarked(self, ledger_id: LedgerId, owner: str) -> HeldLock | None:
        """Take the lock of a ledger, marked or not, like Apache's collectors; None if it is taken.

        Raises:
            AccessDeniedError: an ACL forbids a read; no lock is left.
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; a created lock ends with the session.
        """
        lock, _ = await self._take(ledger_id, owner, ())
        return lock

    async def release(self, lock: HeldLock) -> None:
        """Release the lock if it is still this session's node, never one of another owner. The task stays. Idempotent.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; release again, or wait for the end of the
                session.
        """
        try:
            await self._release(lock)
        except BaseException:
            self._unreleased.add(lock.ledger_id)
            raise
        self._unreleased.discard(lock.ledger_id)
        self._forget_holder(lock)

    async def complete(
        self,
        held: HeldTask,
        checks: Sequence[Operation] = (),
        *,
        seen: Sequence[SeenNode] = (),
        is_pruned_later: bool = False,
    ) -> bool:
        """Delete the task if it is unchanged and the lock is still this session's (S5), and release the lock.

        Args:
            held: the task.
            checks: further conditions of the verdict, such as the version of the ledger's metadata (I18), and nodes to
                be written or deleted with the task; part of the same transaction.
            seen: nodes that must not have been recreated, created or deleted; read together with the lock and the task
                right before the transaction.
            is_pruned_later: the caller calls ``prune`` for many tasks at once.

        Returns:
            True if the task was deleted. False, and the task stays, if it was marked again, one of ``checks`` fails,
            one of ``seen`` is another node, or the lock is no longer this session's.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; release the lock. The next holder sees whether
                the task was deleted.
        """
        if not await self._delete_task(held, checks, seen):
            await self.release(held.lock)
            return False
        self.note_completed(held)
        if not is_pruned_later:
            await self.prune()
        return True

    async def reread(self, held: HeldTask, other_nodes: Sequence[str] = ()) -> HeldTaskState:
        """Read the lock, the task and other nodes again, all no older than this call.

        Raises:
            StoreUnavailableError: no answer.
        """
        ledger_id = held.task.ledger_id
        paths = [task_path(self._root, ledger_id), lock_path(self._root, ledger_id), *other_nodes]
        task, lock, *nodes = await self._store.get_many_current(paths)
        is_ours = lock is not None and _is_own_lock(lock.stat, held.lock)
        return HeldTaskState(is_ours, task is not None and _is_unchanged_task(task, held), tuple(nodes))

    def completion(self, held: HeldTask) -> tuple[Delete, Delete, Delete]:
        """Return operations that delete lock, task and its directory, and fail if the lock or the task has changed.

        The version of a recreated node begins at 0 again. So call ``reread`` right before the transaction, and do not
        continue unless both nodes are unchanged. After the transaction, call ``note_completed``.
        """
        ledger_id = held.task.ledger_id
        return (
            Delete(lock_path(self._root, ledger_id), LOCK_VERSION),
            Delete(task_path(self._root, ledger_id), held.task.version),
            Delete(task_directory(self._root, ledger_id)),
        )

    def note_completed(self, held: HeldTask) -> None:
        """Record the deletion of the task and the lock."""
        self._unreleased.discard(held.lock.ledger_id)
        self._forget_holder(held.lock)
        self._branches.update(parents_of(task_directory(self._root, held.task.ledger_id), tasks_path(self._root))[:1])

    async def prune(self) -> None:
        """Delete empty parents of tasks completed here. Best effort; remaining parents are harmless."""
        branches, self._branches = sorted(self._branches), set()
        for branch in branches:
            await prune(self._store, [branch, *parents_of(branch, tasks_path(self._root))])

    def check(self, ledger_id: LedgerId) -> Check:
        """Return a check that fails a transaction unless a process of bkheal has the lock of the ledger."""
        return Check(lock_path(self._root, ledger_id), LOCK_VERSION)

    def _forget_holder(self, lock: HeldLock) -> None:
        if self._holders.get(lock.ledger_id) == lock.session_id:
            del self._holders[lock.ledger_id]

    async def _take(
        self, ledger_id: LedgerId, owner: str, other_nodes: Sequence[str]
    ) -> tuple[HeldLock | None, list[Node | None]]:
        """Call ``_create``, unless a user of this process has the lock or is taking it; record the holder."""
        session_id = self._store.session.session_id
        if self._holders.get(ledger_id) == session_id:
            return None, []
        self._holders[ledger_id] = session_id
        lock = None
        try:
            lock, nodes = await self._create(ledger_id, owner, other_nodes)
        finally:
            self._holders.pop(ledger_id, None)
            if lock is not None:
                self._holders[ledger_id] = lock.session_id
                self._left_behind.discard(ledger_id)
        return lock, nodes

    async def _release_new(self, lock: HeldLock) -> None:
        """Release a lock right after its creation; until then it counts as unreleased."""
        self._left_behind.add(lock.ledger_id)
        try:
            await self._release(lock)
            self._left_behind.discard(lock.ledger_id)
        finally:
            self._forget_holder(lock)

    async def _create(
        self, ledger_id: LedgerId, owner: str, other_nodes: Sequence[str]
    ) -> tuple[HeldLock | None, list[Node | None]]:
        """Create the lock; return it if it is now this session's, with the task and the ``other_nodes`` read under it.

        Until the holder is recorded, the lock counts as unreleased.

        The task is read after the creation of the lock. On completion, it is compared with this state.
        """
        path = lock_path(self._root, ledger_id)
        for _ in range(WRITE_ATTEMPTS_MAX):
            was_left_behind = ledger_id in self._left_behind
            self._left_behind.add(ledger_id)
            try:
                await self._create_node(path, owner)
            except (NodeExistsError, NoNodeError, StoreUnavailableError) as refused:
                if not was_left_behind:
                    self._left_behind.discard(ledger_id)
                if isinstance(refused, StoreUnavailableError):
                    raise
                if isinstance(refused, NoNodeError):
                    await ensure_path(self._store, locks_path(self._root), self._root)
                    continue
                if not was_left_behind:
                    return None, []
            except WriteOutcomeUnknownError:
                await self._store.sync(path)
            try:
                lock, *nodes = await self._store.get_many([path, task_path(self._root, ledger_id), *other_nodes])
            except PermanentError:
                await self._undo(ledger_id)
                raise
            if lock is None:
                continue
            if lock.stat.ephemeral_owner == self._store.session.session_id:
                return HeldLock(ledger_id, lock.stat.czxid, lock.stat.ephemeral_owner), nodes
            self._left_behind.discard(ledger_id)
            return None, []
        raise WriteOutcomeUnknownError(
            f"locking ledger {ledger_id}: the outcome of every attempt is unknown; try again"
        )

    async def _undo(self, ledger_id: LedgerId) -> None:
        """Release the lock of this session, if there is one, because the store refuses a read under it."""
        stat = await self._store.stat(lock_path(self._root, ledger_id))
        if stat is not None and stat.ephemeral_owner == self._store.session.session_id:
            await self._release(HeldLock(ledger_id, stat.czxid, stat.ephemeral_owner))
        self._left_behind.discard(ledger_id)

    async def _create_node(self, path: str, owner: str) -> None:
        """Create a lock at ``LOCK_VERSION``."""
        data = encode_lock(owner)
        try:
            await self._store.multi([Create(path, data, is_ephemeral=True), SetData(path, data)])
        except MultiFailedError as error:
            raise error.cause from error

    async def _delete_task(self, held: HeldTask, checks: Sequence[Operation], seen: Sequence[SeenNode]) -> bool:
        """Delete the task if it is unchanged since it was seen under the lock; return whether it was deleted."""
        is_unknown = False
        try:
            for _ in range(WRITE_ATTEMPTS_MAX):
                deletion = await self._try_delete_task(held, checks, seen, is_unknown=is_unknown)
                if deletion is not _Deletion.UNSETTLED:
                    return deletion is _Deletion.DELETED
                is_unknown = True
        except StoreUnavailableError as error:
            if not is_unknown:
                raise
            raise WriteOutcomeUnknownError(f"completing ledger {held.task.ledger_id}: {error}") from error
        raise WriteOutcomeUnknownError(
            f"completing ledger {held.task.ledger_id}: the outcome of every attempt is unknown; release it"
        )

    async def _try_delete_task(
        self, held: HeldTask, checks: Sequence[Operation], seen: Sequence[SeenNode], *, is_unknown: bool
    ) -> _Deletion:
        """Make one attempt of ``_delete_task``.

        One transaction deletes the task and the lock, so no other worker can find one without the other.
        """
        unlock, delete, delete_directory = self.completion(held)
        if not self._is_in_session(held.lock):
            return _Deletion.NOT_DELETED
        paths = [delete.path, unlock.path, *(each.path for each in seen)]
        task, lock, *others = await self._store.get_many_current(paths)
        if lock is None and task is None:
            # An earlier transaction of this process, whose answer was lost, deleted both, or another program did.
            return _Deletion.DELETED if is_unknown else _Deletion.NOT_DELETED
        if lock is None or not _is_own_lock(lock.stat, held.lock):
            return _Deletion.NOT_DELETED
        if task is None:
            await self._release(held.lock)
            return _Deletion.DELETED
        if not _is_unchanged_task(task, held) or not all(map(SeenNode.is_same, seen, others)):
            return _Deletion.NOT_DELETED
        if not self._is_in_session(held.lock):
            return _Deletion.NOT_DELETED
        try:
            try:
                await self._store.multi([unlock, *checks, delete, delete_directory])
            except MultiFailedError as error:
                if error.index <= len(checks) + 1:
                    raise
                if not self._is_in_session(held.lock):
                    return _Deletion.NOT_DELETED
                # The task's directory is not empty: it contains a node of another program.
                await self._store.multi([unlock, *checks, delete])
            return _Deletion.DELETED
        except (MultiFailedError, WriteOutcomeUnknownError) as error:
            if isinstance(error, MultiFailedError) and 1 <= error.index <= len(checks):
                return _Deletion.NOT_DELETED
            _log.info("task is read again", extra={"ledger_id": held.task.ledger_id, "error": str(error)})
            return _Deletion.UNSETTLED

    async def _release(self, lock: HeldLock) -> None:
        ledger_id = lock.ledger_id
        path = lock_path(self._root, ledger_id)
        for _ in range(WRITE_ATTEMPTS_MAX):
            if not self._is_in_session(lock):
                return
            await self._store.sync(path)
            stat = await self._store.stat(path)
            if stat is None or not _is_own_lock(stat, lock) or not self._is_in_session(lock):
                return
            try:
                await self._store.delete(path, stat.version)
                return
            except NoNodeError:
                return
            except (BadVersionError, WriteOutcomeUnknownError) as error:
                _log.info("lock is read again", extra={"ledger_id": ledger_id, "error": str(error)})
        raise WriteOutcomeUnknownError(f"releasing the lock of ledger {ledger_id}: every answer was lost; try again")

    def _is_in_session(self, lock: HeldLock) -> bool:
        """Whether the session of a lock has not ended.

        It may end during any read. Then the lock of the next owner has the same version as this one. So there must be
        no ``await`` between this check and the request of a write (S14).
        """
        return self._store.session.is_alive(lock.session_id)


def _is_unchanged_task(task: Node, held: HeldTask) -> bool:
    """Whether this is the same node as seen under the lock, unchanged."""
    return (task.stat.czxid, task.stat.version) == (held.task_czxid, held.task.version)


def _is_own_lock(node: Stat, lock: HeldLock) -> bool:
    """Whether this is the lock node created by the session."""
    return (node.czxid, node.ephemeral_owner) == (lock.czxid, lock.session_id)
