"""Parked tasks: not repairable in the present state of the cluster, with the reason.

They are records of bkheal, outside Apache's tree. They save work and inform operators. A task with a lost or damaged
record counts as not parked, which costs another attempt.

A record names the bookies that were available when the task was parked. Many tasks are parked with the same bookies, so
each distinct list is a separate node (``parked-bookies``), and records refer to it by its hash. A list is written
before its first record, and deleted by ``forget_lists`` once no record has named it for a while. A task whose list is
missing counts as parked without any bookie, which costs another attempt.

Source: docs/failure-model.md#state-under-bkheal.
"""

from __future__ import annotations

import builtins
import contextlib
import enum
import hashlib
import logging
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bookie.metadata.nodes import (
    READS_PER_BATCH,
    child_names,
    create_with_parents,
    find,
    in_steps,
    put,
    remove,
    sorted_ids,
)
from bookie.metadata.own_state import own_path
from bookie.metadata.port import MetadataStore, Node, NodeExistsError, NotEmptyError
from bookie.model.ids import BookieId, LedgerId
from bookie.model.records import UnreadableRecordError, decode_record, encode_record

_log = logging.getLogger(__name__)

_NEWEST: Final = 2
"""Format 1 contained the bookies themselves."""
_HASH_DIGITS: Final = 32
_DETAIL_MAX: Final = 4000
"""Maximum length of a stored detail: enough for an operator, and far below the limit of a node."""
_REFUSALS_MAX: Final = 200
"""Maximum number of stored refusals of a task. If there are more, some bookies are asked again."""


class ParkReason(enum.Enum):
    """Why a task cannot be repaired now."""

    NO_CANDIDATE_BOOKIE = "no_candidate_bookie"
    NO_LIVE_COPY = "no_live_copy"
    NEEDS_RECOVERY = "needs_recovery"
    UNREADABLE_ENTRIES = "unreadable_entries"
    UNREADABLE_METADATA = "unreadable_metadata"
    OPEN_LEDGER = "open_ledger"
    """A bookie being drained may still have a writer; only the writer may replace it."""
    TARGETS_REFUSE = "targets_refuse"
    """Every candidate refuses copies of the ledger, several attempts in a row."""
    UNREACHABLE_BOOKIES = "silent_bookies"
    """Required registered bookies do not answer, several attempts in a row."""
    MISPLACED = "misplaced"
    """No copy is missing, but copies break the placement policy and cannot be moved now; the detail contains why."""
    INTERNAL_ERROR = "internal_error"
    """The repair broke an internal rule; the detail names the place."""


@dataclass(frozen=True, slots=True)
class CopyRefusal:
    """The refusal of copies by a bookie that will refuse them until it registers again."""

    bookie: BookieId
    at_ms: int
    zxid: int
    """A transaction before the refusal. If a later one created the registration, the bookie may have restarted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedTask:
    """A task waiting for a change of the cluster."""

    ledger_id: LedgerId
    reason: ParkReason
    detail: str
    since_ms: int
    bookies_seen: frozenset[BookieId]
    """Writable bookies when it was parked (all registered ones, if a recovery was impossible or bookies did not
    answer): a new one is a reason to try again."""
    task_version: int
    attempts: int = 0
    """Number of retries that ended in parking again. A change shows other workers that an attempt was made."""
    topology: str = ""
    """For a misplaced ledger: the policy and the topology of the verdict (``EnsembleJudge``)."""
    refusals: tuple[CopyRefusal, ...] = ()
    """Bookies that would refuse another attempt as well. If the record names none, another attempt is made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    """The content of a node, in format 1 or 2."""

    reason: ParkReason
    detail: str
    since_ms: int
    task_version: int
    attempts: int = 0
    bookies: str = ""
    """The name of a list of bookies; empty in format 1."""
    bookies_seen: frozenset[BookieId] = frozenset()
    """Format 1: the bookies themselves."""
    topology: str = ""
    refusals: tuple[CopyRefusal, ...] = ()


@dataclass(frozen=True, slots=True)
class _List:
    bookies: frozenset[BookieId]


class ParkedTasks:
    """Parked tasks of the cluster at ``ledgers_root``."""

    def __init__(self, store: MetadataStore, ledgers_root: str) -> None:
        self._store = store
        self._parent = own_path("parked", ledgers_root)
        self._lists = own_path("parked-bookies", ledgers_root)
        self._unused: frozenset[str] = frozenset()
        """Lists named by no record at the last check."""

    async def park(self, task: ParkedTask) -> None:
        """Park a task, or replace its record. The last write wins.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; parking again is safe.
        """
        data = encode_record(_List(task.bookies_seen))
        name = hashlib.sha256(data).hexdigest()[:_HASH_DIGITS]
        with contextlib.suppress(NodeExistsError):
            await create_with_parents(self._store, f"{self._lists}/{name}", data, "/")
        record = _Record(
            reason=task.reason,
            detail=task.detail[:_DETAIL_MAX],
            since_ms=task.since_ms,
            task_version=task.task_version,
            attempts=task.attempts,
            bookies=name,
            topology=task.topology,
            refusals=task.refusals[:_REFUSALS_MAX],
        )
        optional = {"topology": task.topology, "refusals": task.refusals}
        left_out = ["bookies_seen", *(name for name, value in optional.items() if not value)]
        await put(self._store, self.path(task.ledger_id), encode_record(record, without=left_out, number=_NEWEST))

    async def get(self, ledger_id: LedgerId) -> ParkedTask | None:
        """Return a parked task; None if it is not parked or unreadable.

        Raises:
            StoreUnavailableError: no answer.
        """
        node = await find(self._store, self.path(ledger_id))
        record = None if node is None else _decode(ledger_id, node.data)
        if record is None:
            return None
        return _task(ledger_id, record, await self._read_lists({record.bookies}))

    async def list(self) -> builtins.list[ParkedTask]:
        """Return every parked task, by ledger id; yields to the event loop between parts of a long list.

        Raises:
            StoreUnavailableError: no answer.
        """
        return await self.read_many(await sorted_ids(await child_names(self._store, self._parent)), {})

    async def ids(self) -> frozenset[LedgerId]:
        """Return the ledgers with a record, readable or not.

        Raises:
            StoreUnavailableError: no answer.
        """
        return frozenset(await sorted_ids(await child_names(self._store, self._parent)))

    async def read_many(
        self, ledger_ids: Sequence[LedgerId], lists: dict[str, frozenset[BookieId]]
    ) -> builtins.list[ParkedTask]:
        """Return those of many ledgers that are parked; ``lists`` keeps the lists of bookies between calls.

        Raises:
            StoreUnavailableError: no answer.
        """
        found: builtins.list[ParkedTask] = []
        async for records in self._records(ledger_ids):
            lists |= await self._read_lists({record.bookies for _, record in records} - lists.keys())
            found += [_task(ledger_id, record, lists) for ledger_id, record in records]
        return found

    def attempts_in(self, ledger_id: LedgerId, node: Node | None) -> int | None:
        """Return the number of retries of a parked task, from a node read at ``path``.

        None if it is not parked or unreadable.
        """
        record = None if node is None else _decode(ledger_id, node.data)
        return None if record is None else record.attempts

    async def forget_lists(self) -> None:
        """Delete the lists that no record named, neither now nor at the last call. Nodes with children remain.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; calling again is safe.
        """
        lists = frozenset(await child_names(self._store, self._lists))
        if not lists:
            return
        used: set[str] = set()
        async for records in self._records(await sorted_ids(await child_names(self._store, self._parent))):
            used.update(record.bookies for _, record in records)
        before, self._unused = self._unused, lists - used
        for name in sorted(before & self._unused):
            with contextlib.suppress(NotEmptyError):
                await remove(self._store, f"{self._lists}/{name}")

    async def unpark(self, ledger_id: LedgerId) -> None:
        """Delete the record of a parked task. Idempotent.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; unparking again is safe.
        """
        await remove(self._store, self.path(ledger_id))

    def path(self, ledger_id: LedgerId) -> str:
        """Return the path of a task's record."""
        return f"{self._parent}/{ledger_id}"

    async def _records(self, ledger_ids: Sequence[LedgerId]) -> AsyncIterator[builtins.list[tuple[LedgerId, _Record]]]:
        """Yield the readable records of ``ledger_ids``, in parts."""
        async for part in in_steps(ledger_ids, READS_PER_BATCH):
            nodes = await self._store.get_many_data([self.path(ledger_id) for ledger_id in part])
            async for pairs in in_steps(list(zip(part, nodes, strict=True))):
                decoded = [(ledger_id, _decode(ledger_id, data)) for ledger_id, data in pairs if data is not None]
                yield [(ledger_id, record) for ledger_id, record in decoded if record is not None]

    async def _read_lists(self, names: Collection[str]) -> dict[str, frozenset[BookieId]]:
        wanted = sorted(name for name in names if name)
        if not wanted:
            return {}
        found = await self._store.get_many_data([f"{self._lists}/{name}" for name in wanted])
        return {name: _decode_list(name, data) for name, data in zip(wanted, found, strict=True)}


def _task(ledger_id: LedgerId, record: _Record, lists: Mapping[str, frozenset[BookieId]]) -> ParkedTask:
    bookies = lists.get(record.bookies, frozenset()) if record.bookies else record.bookies_seen
    return ParkedTask(
        ledger_id=ledger_id,
        reason=record.reason,
        detail=record.detail,
        since_ms=record.since_ms,
        bookies_seen=bookies,
        task_version=record.task_version,
        attempts=record.attempts,
        topology=record.topology,
        refusals=record.refusals,
    )


def _decode_list(name: str, data: bytes | None) -> frozenset[BookieId]:
    if data is None:
        return frozenset()
    try:
        return decode_record(data, _List).bookies
    except UnreadableRecordError as error:
        _log.warning("list of bookies of parked tasks cannot be read", extra={"list": name, "error": str(error)})
        return frozenset()


def _decode(ledger_id: LedgerId, data: bytes) -> _Record | None:
    try:
        record = decode_record(data, _Record, newest=_NEWEST)
        if not record.bookies:
            decode_record(data, _Record, newest=_NEWEST, required=["bookies_seen"])
        return record
    except UnreadableRecordError as error:
        _log.warning("parked task cannot be read", extra={"ledger_id": ledger_id, "error": str(error)})
        return None
