"""Marking ledgers as under-replicated: create the task, or merge into it (docs/formats.md#marking).

After a bookie loss nearly all tasks are new. So many are first created together with their directories, without a read.
If creates are refused, the tasks are read and merged. Marking never removes anything from a task, so it is idempotent,
and two concurrent auditors lose nothing: each change is a create or a compare-and-set, and the later one merges again.

A task that already names all the bookies is not written, so that its version stays the same: a worker may be about to
complete it. There is one exception: if one of the bookies that is not draining has registered since the last change of
the task, the task is written again with the same content, and gets a new version. The bookie may have lost its disks
since it answered the worker (R136). The time in the task stays: the ledger has lacked copies since then.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from bookie.metadata.layout import bookie_path, task_branches, task_directory, task_name, task_path
from bookie.metadata.nodes import (
    WRITE_ATTEMPTS_MAX,
    batches,
    create_missing,
    create_with_parents,
    get_permitted,
    group_batches,
    parent_of,
    reread,
)
from bookie.metadata.own_state import own_path
from bookie.metadata.port import (
    AccessDeniedError,
    BadVersionError,
    Create,
    MetadataStore,
    MultiFailedError,
    Node,
    NodeExistsError,
    NoNodeError,
    Operation,
    SetData,
    WriteOutcomeUnknownError,
)
from bookie.metadata.tasks.format import TaskData, UnreadableTaskError, decode_task, encode_task
from bookie.model.ids import BookieId, LedgerId, is_bookie_id
from bookie.runtime.clock import Clock
from bookie.runtime.waiting import all_started_in_order

_log = logging.getLogger(__name__)

_MARK_BATCH_SIZE: Final = 4000
"""Number of ledgers read, decided and written at a time: bounds memory, and the age of the data used for a change."""
_BATCH_ROUNDS: Final = 3
"""Attempts in batches; ledgers that still have conflicts afterwards are marked one by one."""
_INVALID_NODE_NAMES: Final = (".", "..")
"""Ids that ZooKeeper refuses as names of nodes, so no bookie with such an id is registered."""
_BRANCHES_MAX: Final = 10_000
"""Maximum number of upper directories that are remembered as created; each serves 65,536 ledgers."""

Findings = Mapping[LedgerId, tuple[BookieId, ...]]


@dataclass(frozen=True, slots=True)
class _MarkDecision:
    """Result of one read of the tasks."""

    operations: list[Operation]
    done_count: int
    """Marks carried out by an earlier attempt with a lost answer."""


class TaskMarking:
    """Marks ledgers of one cluster."""

    def __init__(self, store: MetadataStore, root: str, clock: Clock) -> None:
        self._store = store
        self._root = root
        self._clock = clock
        self._branches: set[str] = set()
        """Parents of task directories that were found or created earlier.

        If one of them was deleted since, creates below it are refused.
        """
        self._expects_new = True
        """Whether most ledgers of the last step had no task."""

    async def mark(self, ledger_id: LedgerId, missing: Sequence[BookieId]) -> bool:
        """Mark one ledger; return whether a task was created or changed.

        Raises:
            UnreadableTaskError: its task exists and is unreadable; it was not touched.
            StoreUnavailableError, WriteOutcomeUnknownError, ConflictError: perhaps not marked; mark again.
        """
        path = task_path(self._root, ledger_id)
        error: Exception | None = None
        node: Node | None = None
        for attempt in range(WRITE_ATTEMPTS_MAX):
            if attempt:
                node = await reread(self._store, path)
            try:
                if node is None:
                    data = TaskData(tuple(dict.fromkeys(missing)), self._clock.epoch_ms())
                    await create_with_parents(self._store, path, encode_task(data), self._root)
                    return True
                merged = _merged(node, missing, self._clock.epoch_ms(), await self._registered_at(missing))
                if merged is None:
                    return isinstance(error, WriteOutcomeUnknownError)
                await self._store.set(path, encode_task(merged), node.stat.version)
                return True
            except (NodeExistsError, NoNodeError, BadVersionError, WriteOutcomeUnknownError) as refused:
                error = refused
        assert error is not None
        raise error

    async def mark_many(self, findings: Iterable[tuple[LedgerId, Sequence[BookieId]]]) -> int:
        """Mark many ledgers, in the order given; return the number of created or changed tasks.

        An unreadable task is logged and left as it is, because it marks its ledger. So is one that this session may not
        read.

        Raises:
            AccessDeniedError: this session may not mark, or may read none of several tasks.
            StoreUnavailableError, WriteOutcomeUnknownError, ConflictError: some are marked; mark all again.
        """
        union: dict[LedgerId, tuple[BookieId, ...]] = {}
        for ledger_id, missing in findings:
            union[ledger_id] = tuple(dict.fromkeys((*union.get(ledger_id, ()), *missing)))
        remaining = iter(union.items())
        count = 0
        while step := dict(islice(remaining, _MARK_BATCH_SIZE)):
            count += await self._mark_step(step)
        return count

    async def _mark_step(self, findings: Findings) -> int:
        sent: dict[str, bytes] = {}
        if not self._expects_new:
            return await self._merge(findings, sent)
        refused = await self._create_unseen(findings, sent)
        if not refused:
            return len(findings)
        left = {key: value for key, value in findings.items() if task_path(self._root, key) in refused}
        self._expects_new = 2 * len(left) <= len(findings)
        return len(findings) - len(left) + await self._merge(left, sent, is_refused=True)

    async def _create_unseen(self, findings: Findings, sent: dict[str, bytes]) -> set[str]:
        """Create each task together with its own directory; return the paths of the refused ones."""
        branches = [path for path in task_branches(self._root, findings) if path not in self._branches]
        if branches:
            await create_missing(self._store, branches, self._root)
            if len(self._branches) > _BRANCHES_MAX:
                self._branches.clear()
            self._branches.update(branches)
        refused: set[str] = set()
        await all_started_in_order(self._send(part, sent, refused) for part in group_batches(self._pairs(findings)))
        if refused:
            self._branches.clear()  # if the task does not exist, the likeliest reason is a deleted branch
        return refused

    def _pairs(self, findings: Findings) -> Iterator[tuple[Create, Create]]:
        """Yield the creates of each ledger's task directory and task."""
        now_ms = self._clock.epoch_ms()
        texts = {missing: encode_task(TaskData(missing, now_ms)) for missing in set(findings.values())}
        for ledger_id, missing in findings.items():
            directory = task_directory(self._root, ledger_id)
            yield Create(directory), Create(f"{directory}/{task_name(ledger_id)}", texts[missing])

    async def _merge(self, findings: Findings, sent: dict[str, bytes], *, is_refused: bool = False) -> int:
        """Read the tasks, then create or change them; return the number.

        After a refused attempt, a ``sync`` makes the reads current.
        """
        count = 0
        for attempt in range(_BATCH_ROUNDS):
            if attempt or is_refused:
                await self._store.sync(self._root)
            decided = await self._decide(findings, sent)
            count += decided.done_count
            if not attempt:
                creates = sum(isinstance(operation, Create) for operation in decided.operations)
                self._expects_new = 2 * creates > len(findings)
            if not decided.operations:
                return count
            parents = {parent_of(operation.path): None for operation in decided.operations}
            await create_missing(self._store, list(parents), self._root)
            refused: set[str] = set()
            await all_started_in_order(self._send(part, sent, refused) for part in batches(decided.operations))
            count += sum(operation.path not in refused for operation in decided.operations)
            findings = {key: value for key, value in findings.items() if task_path(self._root, key) in refused}
            if not findings:
                return count
        return count + await self._mark_singly(findings)

    async def _decide(self, findings: Findings, sent: Mapping[str, bytes]) -> _MarkDecision:
        paths = [task_path(self._root, ledger_id) for ledger_id in findings]
        nodes = await get_permitted(self._store, paths)
        known = [missing for node, missing in zip(nodes, findings.values(), strict=True) if isinstance(node, Node)]
        registered_at = await self._registered_at(itertools.chain.from_iterable(set(known)))
        now_ms = self._clock.epoch_ms()
        operations: list[Operation] = []
        done_count = 0
        for path, node, (ledger_id, missing) in zip(paths, nodes, findings.items(), strict=True):
            if node is None:
                operations.append(Create(path, encode_task(TaskData(missing, now_ms))))
            elif isinstance(node, AccessDeniedError):
                _log_unreadable(ledger_id, node)
            else:
                try:
                    merged = _merged(node, missing, now_ms, registered_at)
                except UnreadableTaskError as error:
                    _log_unreadable(ledger_id, error)
                    continue
                if merged is not None:
                    operations.append(SetData(path, encode_task(merged), node.stat.version))
                else:
                    done_count += node.data == sent.get(path)
        return _MarkDecision(operations, done_count)

    async def _registered_at(self, bookies: Iterable[BookieId]) -> dict[BookieId, int]:
        """Return the transaction that created the registration of each registered bookie; no older than this call.

        Draining bookies are left out: workers replace them without asking them for their entries.
        """
        asked = [bookie for bookie in set(bookies) if is_bookie_id(bookie) and bookie not in _INVALID_NODE_NAMES]
        if not asked:
            return {}
        drains = own_path("drains", self._root)
        paths = [
            path
            for bookie in asked
            for path in (
                bookie_path(self._root, bookie, is_read_only=False),
                bookie_path(self._root, bookie, is_read_only=True),
                f"{drains}/{bookie}",
            )
        ]
        nodes = await self._store.get_many_current(paths)
        found: dict[BookieId, int] = {}
        for bookie, writable, read_only, drain in zip(asked, nodes[::3], nodes[1::3], nodes[2::3], strict=True):
            if drain is None and (registered := [node.stat.czxid for node in (writable, read_only) if node]):
                found[bookie] = max(registered)
        return found

    async def _send(self, operations: Sequence[Operation], sent: dict[str, bytes], refused: set[str]) -> None:
        """Carry out a batch, or put all of it into ``refused``."""
        try:
            await self._store.multi(operations)
        except (MultiFailedError, WriteOutcomeUnknownError) as error:
            refused.update(operation.path for operation in operations)
            if isinstance(error, WriteOutcomeUnknownError):
                sent.update({op.path: op.data for op in operations if isinstance(op, Create | SetData)})

    async def _mark_singly(self, findings: Findings) -> int:
        count = 0
        for ledger_id, missing in findings.items():
            try:
                count += await self.mark(ledger_id, missing)
            except UnreadableTaskError as error:
                _log_unreadable(ledger_id, error)
        return count


def _merged(
    node: Node, missing: Sequence[BookieId], now_ms: int, registered_at: Mapping[BookieId, int]
) -> TaskData | None:
    """Return the task to write, which may be equal to the present one; None if the node is not written."""
    task = decode_task(node.data)
    merged = task.merged(missing, now_ms)
    if merged is None and any(registered_at.get(bookie, 0) > node.stat.mzxid for bookie in missing):
        return task
    return merged


def _log_unreadable(ledger_id: LedgerId, error: UnreadableTaskError | AccessDeniedError) -> None:
    _log.warning("task cannot be read and stays as it is", extra={"ledger_id": ledger_id, "error": str(error)})
