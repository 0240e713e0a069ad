"""Operators' decisions about dead letters: ``/bkheal/decisions/<ledgers root>/<ledger id>``.

An operator accepts the loss of entries without any live copy, or drops the task of a ledger without accepting anything.
The record names the operator, the time and the reason. It changes no metadata and deletes no entry. An audit does not
mark a ledger again for positions with an accepted loss. A damaged record accepts nothing, so the next audit marks the
ledger again.

There are at most ``ACCEPTED_MAX`` accepted losses and ``DROPPED_MAX`` records of dropped tasks.

Source: docs/failure-model.md#state-under-bkheal.
"""

from __future__ import annotations

import builtins
import enum
import logging
from collections.abc import Collection, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final, TypeAlias

from bookie.metadata.nodes import child_names, ensure_path, find, ledger_ids, remove
from bookie.metadata.own_state import own_path
from bookie.metadata.port import NODE_DATA_MAX, BadVersionError, Create, MetadataStore, NoNodeError, SetData
from bookie.metadata.tasks.parked import ParkReason
from bookie.model.errors import PermanentError
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.records import UnreadableRecordError, decode_record, encode_record

_log = logging.getLogger(__name__)

Copies: TypeAlias = AbstractSet[tuple[EntryId, int, BookieId]]
"""Copies of fragments of one ledger: the first entry, the position, and the bookie."""

ACCEPTED_MAX: Final = 10_000
"""An audit keeps all accepted losses in memory. More ledgers with lost entries than this are an incident, and not
exceptions to accept one by one."""
DROPPED_MAX: Final = 1_000
"""No program needs the records of dropped tasks, only operators; the oldest are removed first."""


class DecisionTooLargeError(PermanentError):
    """The record does not fit into a node."""


class Verdict(enum.Enum):
    """An operator's decision about a ledger."""

    LOSS_ACCEPTED = "loss_accepted"
    """The entries without any live copy are lost."""
    DROPPED = "dropped"
    """The task was removed. The next audit may mark the ledger again."""


@dataclass(frozen=True, slots=True)
class Denial:
    """A position of a lost entry. Its bookie is registered and denied entries."""

    position: int
    bookie: BookieId
    entries: int
    """Number of the fragment's entries that are missing on the bookie."""


@dataclass(frozen=True, slots=True)
class LostFragment:
    """A fragment with entries that no registered bookie has."""

    first_entry_id: EntryId
    last_entry_id: EntryId
    positions: tuple[int, ...]
    """Ensemble positions of these entries with an unregistered bookie; ascending."""
    bookies: tuple[BookieId, ...]
    """Their bookies, in the order of the positions."""
    denials: tuple[Denial, ...] = ()
    """The other positions of these entries, ascending."""

    def covers(self, positions: Sequence[int], bookies: Collection[BookieId], absent: int) -> bool:
        """Return whether the loss covers all entries denied by bookies in the fragment.

        Args:
            positions: the positions with missing entries.
            bookies: their bookies.
            absent: total number of missing copies there.
        """
        denied = [denial for denial in self.denials if denial.position in positions]
        return (
            len(denied) == len(positions)
            and {denial.bookie for denial in denied}.issuperset(bookies)
            and absent <= sum(denial.entries for denial in denied)
        )


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision about one ledger."""

    ledger_id: LedgerId
    verdict: Verdict
    by: str
    at_ms: int
    reason: str
    park_reason: ParkReason | None = None
    """Why the ledger was parked; None if it was no longer parked."""
    lost: tuple[LostFragment, ...] = ()
    """The accepted losses, by first entry."""

    @property
    def bookies(self) -> tuple[BookieId, ...]:
        """The unregistered bookies of all accepted losses, without duplicates."""
        return tuple(dict.fromkeys(bookie for fragment in self.lost for bookie in fragment.bookies))

    @property
    def copies(self) -> Copies:
        """The copies on unregistered bookies of all accepted losses."""
        return frozenset(
            (fragment.first_entry_id, position, bookie)
            for fragment in self.lost
            for position, bookie in zip(fragment.positions, fragment.bookies, strict=False)
        )

    @property
    def is_accepted(self) -> bool:
        """Whether the loss was accepted."""
        return self.verdict is Verdict.LOSS_ACCEPTED

    def is_valid(self, registered: AbstractSet[BookieId]) -> bool:
        """Return whether the accepted loss still holds: a bookie that is registered again may have the copies (R45)."""
        return registered.isdisjoint(self.bookies)


class Decisions:
    """The decisions about ledgers of the cluster at ``ledgers_root``."""

    def __init__(self, store: MetadataStore, ledgers_root: str) -> None:
        self._store = store
        self._parent = own_path("decisions", ledgers_root)

    async def get(self, ledger_id: LedgerId) -> Decision | None:
        """Return the decision about a ledger, no older than this call; None if missing or damaged.

        Raises:
            StoreUnavailableError: no answer.
        """
        path = self.path(ledger_id)
        await self._store.sync(path)
        node = await find(self._store, path)
        return None if node is None else _decode(ledger_id, node.data)

    async def list(self) -> builtins.list[Decision]:
        """Return every decision, by ledger id. Two requests, or a few more for very many decisions.

        Raises:
            StoreUnavailableError: no answer.
        """
        await self._store.sync(self._parent)
        ids = ledger_ids(await child_names(self._store, self._parent))
        found = await self._store.get_many_data([self.path(ledger_id) for ledger_id in ids])
        decisions = [_decode(ledger_id, data) for ledger_id, data in zip(ids, found, strict=True) if data is not None]
        return [decision for decision in decisions if decision is not None]

    async def accepted(self) -> builtins.list[Decision]:
        """Return the accepted losses, by ledger id.

        Raises:
            StoreUnavailableError: no answer.
        """
        return [decision for decision in await self.list() if decision.is_accepted]

    async def writing(self, decision: Decision) -> Create | SetData:
        """Return an operation to write a decision, in place of an earlier one about the ledger.

        The transaction with this operation fails if the record changes first.

        Raises:
            DecisionTooLargeError: it names too many fragments for one node.
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; nothing was decided.
        """
        data = encode_record(decision, without=["ledger_id"])
        if len(data) > NODE_DATA_MAX:
            raise DecisionTooLargeError(
                f"the record of ledger {decision.ledger_id} has {len(data)} bytes, and a node holds {NODE_DATA_MAX}: "
                f"{len(decision.lost)} fragments are too many"
            )
        await ensure_path(self._store, self._parent)
        path = self.path(decision.ledger_id)
        await self._store.sync(path)
        stat = await self._store.stat(path)
        return Create(path, data) if stat is None else SetData(path, data, stat.version)

    async def forget(self, ledger_id: LedgerId) -> None:
        """Remove the decision about a ledger. Idempotent.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; removing it again is safe.
        """
        await remove(self._store, self.path(ledger_id))

    async def withdraw(self, decision: Decision) -> None:
        """Remove a decision unless another one has replaced it. Idempotent.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; withdrawing it again is safe.
        """
        path = self.path(decision.ledger_id)
        await self._store.sync(path)
        node = await find(self._store, path)
        if node is None or _decode(decision.ledger_id, node.data) != decision:
            return
        try:
            await self._store.delete(path, node.stat.version)
        except (NoNodeError, BadVersionError):
            return

    async def forget_old_drops(self) -> None:
        """Remove the oldest records of dropped tasks above ``DROPPED_MAX``.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; the next call removes the rest.
        """
        dropped = [decision for decision in await self.list() if not decision.is_accepted]
        dropped.sort(key=lambda decision: decision.at_ms, reverse=True)
        for decision in dropped[DROPPED_MAX:]:
            await self.withdraw(decision)

    def path(self, ledger_id: LedgerId) -> str:
        """Return the path of the decision about a ledger."""
        return f"{self._parent}/{ledger_id}"


def _decode(ledger_id: LedgerId, data: bytes) -> Decision | None:
    try:
        return decode_record(data, Decision, ledger_id=ledger_id)
    except UnreadableRecordError as error:
        _log.warning("accepted loss cannot be read and is ignored", extra={"ledger_id": ledger_id, "error": str(error)})
        return None
