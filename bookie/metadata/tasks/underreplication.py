"""Under-replication tasks: the tree, the marking and locking of tasks, and the switches of auto-recovery.

The invariant: bkheal deletes a task only together with the lock under which it was read, and only if the task is still
the same node at the same version (S5). All other changes only add: marking creates a task or merges bookies into it.
The tree is Apache's, so its auditors and workers share the same tasks, locks and switches.

Any number of processes may mark and complete at the same time. Each mark is a create or a compare-and-set, repeated
after a conflict; a task that already names all the bookies stays as it is (``marking``). A worker first creates the
lock and then reads the task. A mark during the repair changes the task's version, so the completion fails and the task
stays (R13).

A crash while many ledgers are being marked leaves some of them marked, and the next audit marks the rest (R21, R22). A
crash of a worker leaves the task; the lock ends with the session (S14). If the answer to a lock request is lost, a lock
may remain, and the next attempt of this process finds it (``locks``). While the ``disable`` node exists, audits do not
mark and workers do not copy (``switches``, S7).

Sources: docs/formats.md#under-replication; R rules are defined in docs/failure-model.md, S rules in docs/invariants.md.
"""

from __future__ import annotations

import asyncio
import builtins
import logging
from bisect import bisect_left
from collections.abc import AsyncGenerator, AsyncIterator, Container, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from bookie.metadata.cluster import Cluster
from bookie.metadata.layout import (
    LAYOUT,
    UNDERREPLICATION,
    locks_path,
    task_ledger_id,
    task_level_names,
    task_path,
    tasks_path,
)
from bookie.metadata.nodes import READS_PER_BATCH, create_with_parents, ensure_path, get_permitted, in_steps, reread
from bookie.metadata.port import (
    AccessDeniedError,
    Children,
    MetadataStore,
    Node,
    NodeExistsError,
    NoNodeError,
    WriteOutcomeUnknownError,
)
from bookie.metadata.tasks.format import TASKS_LAYOUT, UnreadableTaskError, decode_task, is_tasks_layout
from bookie.metadata.tasks.locks import Task, TaskLocks
from bookie.metadata.tasks.marking import TaskMarking
from bookie.metadata.tasks.switches import RecoverySwitches
from bookie.model.errors import PermanentError
from bookie.model.ids import LEDGER_ID_MAX, LedgerId
from bookie.runtime.clock import Clock

_log = logging.getLogger(__name__)

_TREE_LEVELS: Final = 4
_DIGITS: Final = 16
"""Hexadecimal digits of a ledger id in the path of its task."""
_LEVEL_DIGITS: Final = _DIGITS // _TREE_LEVELS
_LOGGED_MAX: Final = 10_000
"""Number of unreadable tasks that are remembered, so that each is logged once. Beyond it, they are logged again."""
_NAMES_AT_ONCE: Final = 10_000
"""Number of names of branches parsed before a yield to the event loop: a few milliseconds of work."""


class IncompatibleTasksError(PermanentError):
    """The tree of tasks is of an unknown kind or version."""


@dataclass(frozen=True, slots=True)
class UnreadableTask:
    """A task that is damaged or may not be read, which is a finding. Its ledger is marked, the bookies are unknown."""

    ledger_id: LedgerId
    reason: str


@dataclass(frozen=True, slots=True)
class TaskPart:
    """Consecutive tasks of the tree."""

    tasks: Sequence[Task | UnreadableTask]
    next_after: LedgerId | None
    """Continue after this ledger; None at the end of the tree."""


class UnderReplication:
    """The under-replication tasks of one cluster. Use one instance per store (see ``TaskLocks``).

    Attributes:
        marking: marks ledgers.
        locks: locks and completes tasks.
        switches: the cluster-wide switches.
    """

    def __init__(self, store: MetadataStore, cluster: Cluster, clock: Clock) -> None:
        self._store = store
        self._root = cluster.root
        self.marking = TaskMarking(store, cluster.root, clock)
        self.locks = TaskLocks(store, cluster.root)
        self.switches = RecoverySwitches(store, cluster.root)
        self._logged: set[UnreadableTask] = set()

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
                    f"{layout} contains {node.data[:100]!r}: expected type BASIC, version 1"
                ) from None
        await ensure_path(self._store, tasks_path(self._root), self._root)
        await ensure_path(self._store, locks_path(self._root), self._root)

    async def list(self) -> builtins.list[Task]:
        """Return every readable task, by ledger id; each of the others is logged once.

        Raises:
            StoreUnavailableError: no answer.
        """
        return [task for task in await self._scan() if isinstance(task, Task)]

    async def list_all(self) -> builtins.list[Task | UnreadableTask]:
        """Return every task, readable or not, by ledger id; yields to the event loop between parts of a long list.

        Raises:
            StoreUnavailableError: no answer.
        """
        return await self._scan()

    async def page(
        self, after: LedgerId | None, places_max: int, left_out: Container[LedgerId] = frozenset()
    ) -> TaskPart:
        """Return the tasks in the next places of the tree, by ledger id. The cost does not depend on the tree's size.

        Args:
            after: start after this ledger; None: at the first.
            places_max: number of places to read, at least 1. A place may no longer have a task, so a part may be short
                or empty although more tasks follow.
            left_out: ledgers to pass over. Their tasks are not read, and do not count as places.

        Raises:
            StoreUnavailableError: no answer.
        """
        await self._store.sync(tasks_path(self._root))
        first = 0 if after is None else after + 1
        ids: builtins.list[LedgerId] = []
        async for ledger_id in self._places(tasks_path(self._root), "", f"{first:0{_DIGITS}x}"):
            if ledger_id in left_out:
                continue
            if len(ids) == places_max:
                return TaskPart(await self._tasks_of(ids), ids[-1])
            ids.append(ledger_id)
        return TaskPart(await self._tasks_of(ids), None)

    async def places(self, count_max: int) -> builtins.list[LedgerId]:
        """Return the first ``count_max`` ledgers with a place in the tree, ascending; each marked ledger has one.

        This needs one request for each 65,536 ids, unlike ``ids``, which also lists every place. Some of these ledgers
        may no longer be marked.

        Raises:
            StoreUnavailableError: no answer.
        """
        await self._store.sync(tasks_path(self._root))
        found: builtins.list[LedgerId] = []
        async with aclosing(self._places(tasks_path(self._root), "", "0" * _DIGITS)) as places:
            async for ledger_id in places:
                if len(found) == count_max:
                    break
                found.append(ledger_id)
        return found

    async def _places(self, path: str, digits: str, first: str) -> AsyncGenerator[LedgerId]:
        """Yield the ledgers with a directory below ``path``, ascending, from ``first`` on.

        ``digits`` are the digits of their ids that ``path`` contains. A directory with a number that is no ledger id is
        left out.
        """
        listing = (await self._store.children_many([path]))[0]
        names = [] if listing is None else task_level_names(listing.names)
        start = bisect_left(names, first[len(digits) :][:_LEVEL_DIGITS]) if first.startswith(digits) else 0
        for name in names[start:]:
            below = digits + name
            if len(below) == _DIGITS:
                if (value := int(below, 16)) <= LEDGER_ID_MAX:
                    yield LedgerId(value)
                continue
            async for ledger_id in self._places(f"{path}/{name}", below, first):
                yield ledger_id

    async def _tasks_of(self, ids: Sequence[LedgerId]) -> builtins.list[Task | UnreadableTask]:
        found: builtins.list[Task | UnreadableTask] = []
        async for part in in_steps(ids, READS_PER_BATCH):
            found += [task for task in await self.read_many(part) if task is not None]
        return found

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
        """Wait until the top of the tree differs from ``seen``: the first task of an empty tree changes it.

        Branches without tasks are removed. If there are other tasks, a new task may leave the top unchanged.

        Raises:
            StoreUnavailableError: the session was lost while waiting.
        """
        await self._store.wait_children_changed(tasks_path(self._root), seen)

    async def read(self, ledger_id: LedgerId) -> Task | None:
        """Return a ledger's task, or None if it is not marked.

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
        """Return the tasks of many ledgers, None for each unmarked one. Not one point in time.

        A task that this session may not read is unreadable.

        Raises:
            AccessDeniedError: this session may read none of several tasks.
            StoreUnavailableError: no answer.
        """
        nodes = await get_permitted(self._store, [task_path(self._root, ledger_id) for ledger_id in ledger_ids])
        found: builtins.list[Task | UnreadableTask | None] = []
        async for pairs in in_steps(list(zip(ledger_ids, nodes, strict=True))):
            found += [self._task(ledger_id, node) for ledger_id, node in pairs]
        return found

    def _task(self, ledger_id: LedgerId, node: Node | AccessDeniedError | None) -> Task | UnreadableTask | None:
        if node is None:
            return None
        try:
            if isinstance(node, AccessDeniedError):
                raise node
            data = decode_task(node.data)
        except (UnreadableTaskError, AccessDeniedError) as error:
            unreadable = UnreadableTask(ledger_id, str(error))
            if unreadable not in self._logged:
                _log.warning("task cannot be read", extra={"ledger_id": ledger_id, "error": unreadable.reason})
                if len(self._logged) == _LOGGED_MAX:
                    self._logged.clear()
                self._logged.add(unreadable)
            return unreadable
        return Task(ledger_id, data.missing, data.ctime_ms, node.stat.version)

    async def ids(self) -> builtins.list[LedgerId]:
        """Return the marked ledgers, ascending; yields to the event loop between parts of a long list.

        Raises:
            StoreUnavailableError: no answer.
        """
        paths = [tasks_path(self._root)]
        await self._store.sync(paths[0])
        for _ in range(_TREE_LEVELS):
            below: builtins.list[str] = []
            async for parent, names in self._names(paths):
                async for some in in_steps(names, _NAMES_AT_ONCE):
                    below += _below(parent, some)
            paths = below
        ids = [task_ledger_id(name) async for _, names in self._names(paths) for name in names]
        return await _in_order(ids)

    async def _scan(self) -> builtins.list[Task | UnreadableTask]:
        return await self._tasks_of(await self.ids())  # tasks that were completed after the listing are left out

    async def _names(self, paths: builtins.list[str]) -> AsyncIterator[tuple[str, tuple[str, ...]]]:
        async for part in in_steps(paths, READS_PER_BATCH):
            listings = await self._store.children_many(part)
            async for pairs in in_steps(list(zip(part, listings, strict=True))):
                for path, listing in pairs:
                    if listing is not None:
                        yield path, listing.names


async def _in_order(ids: Sequence[LedgerId | None]) -> list[LedgerId]:
    """Return the ids other than None, ascending. They must be sorted because branches are listed in any order."""
    known = [ledger_id for ledger_id in ids if ledger_id is not None]
    await asyncio.sleep(0)
    known.sort()
    await asyncio.sleep(0)
    return known


def _below(parent: str, names: Sequence[str]) -> list[str]:
    return [f"{parent}/{name}" for name in task_level_names(names)]
