"""Operators' decisions about dead letters: ``/bkheal/decisions/<ledgers root>/<ledger id>``.

An operator accepts the loss of entries without any live copy, or drops the task of a ledger without accepting anything.
The record names the operator, the time and the reason. It changes no metadata and deletes no entry. An audit does not
mark a ledger again for what the record accepts. A damaged record accepts nothing, so the next audit marks the ledger
again.

An accepted loss names the ids of the lost entries. Then nothing but these entries is accepted: a worker copies the
other entries of their positions, and names each new member in the record in the same transaction (R148). A record
without ids, from an earlier release or with too many ids, accepts whole positions instead, and nothing is copied for
them.

There are at most ``ACCEPTED_MAX`` accepted losses and ``DROPPED_MAX`` records of dropped tasks.

R rules are defined in docs/failure-model.md. Source: docs/failure-model.md#state-under-bkheal.
"""

from __future__ import annotations

import builtins
import enum
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, TypeAlias

from bookie.metadata.nodes import child_names, ensure_path, find, ledger_ids, read_each_permitted, remove
from bookie.metadata.own_state import own_path
from bookie.metadata.port import (
    NODE_DATA_MAX,
    AccessDeniedError,
    BadVersionError,
    Create,
    MetadataStore,
    Node,
    NoNodeError,
    SetData,
)
from bookie.metadata.tasks.parked import ParkReason
from bookie.model.availability import EntryRuns, RunGroup, RunsBuilder
from bookie.model.errors import InvariantError, PermanentError
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import LedgerMetadata
from bookie.model.records import UnreadableRecordError, decode_record, encode_record
from bookie.model.schedule import Stripe

_log = logging.getLogger(__name__)

Copies: TypeAlias = AbstractSet[tuple[EntryId, int, BookieId]]
"""Copies of fragments of one ledger: the first entry, the position, and the bookie."""

ACCEPTED_MAX: Final = 10_000
"""An audit keeps all accepted losses in memory. More ledgers with lost entries than this are an incident, and not
exceptions to accept one by one."""
DROPPED_MAX: Final = 1_000
"""No program needs the records of dropped tasks, only operators; the oldest are removed first."""
LOST_GROUPS_MAX: Final = 1_000
"""The most groups of runs of entry ids in one record. A striped fragment needs few, whatever its length. Audits keep
the records in memory, and more groups than this are scattered damage, for which the record accepts whole positions."""


_SUBTRACTED_MAX: Final = 100_000
"""The most lost entries from which those that were found are subtracted, which takes a step for each."""


class DecisionTooLargeError(PermanentError):
    """The record does not fit into a node."""


class DecisionKind(enum.Enum):
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
    entries: tuple[RunGroup, ...] = ()
    """The ids of the lost entries. Empty in records without ids."""
    shared: tuple[int, ...] = ()
    """Those of ``positions`` that also store other entries. A worker gives them a bookie with these (R148). Empty in
    records without ids."""

    @property
    def lost_entries(self) -> EntryRuns:
        """The ids of the lost entries; empty in records without ids."""
        builder = RunsBuilder()
        for group in self.entries:
            builder.add_group(group)
        return builder.built()

    def whole(self) -> list[tuple[int, BookieId]]:
        """Return the positions without any other entry, or all of a record without ids, with their bookies."""
        named = zip(self.positions, self.bookies, strict=False)
        return [(position, bookie) for position, bookie in named if position not in self.shared]

    def bookie_at(self, position: int) -> BookieId | None:
        """Return the bookie that the record names at a position; None if it names none."""
        named = dict(zip(self.positions, self.bookies, strict=False))
        named |= {denial.position: denial.bookie for denial in self.denials}
        return named.get(position)

    def found_by(self, stripe: Stripe, position: int, left_out: EntryRuns) -> EntryRuns:
        """Return the lost entries that a copy of ``position`` without ``left_out`` has nevertheless.

        If some of very many were found, all of them are returned, because they are compared one by one.
        """
        lost = self.lost_entries
        if stripe.held_count(position, lost, self.first_entry_id, self.last_entry_id) == len(left_out):
            return EntryRuns()
        if len(lost) > _SUBTRACTED_MAX:
            return lost
        return EntryRuns.of(each for each in lost if stripe.stores(position, each) and each not in left_out)

    def after_copy(self, stripe: Stripe, copy: AcceptedCopy) -> LostFragment | None:
        """Return the loss after a copy, which names its target; None if nothing is accepted any more.

        An entry of the position that the target got was found, so it is not lost any more. If a very large loss was
        found in part, its acceptance ends, and an operator has to accept the rest again.
        """
        position, lost = copy.position, self.lost_entries
        if found := self.found_by(stripe, position, copy.left_out):
            lost = EntryRuns.of(each for each in lost if each not in found) if len(found) < len(lost) else EntryRuns()
        denials = [denial for denial in self.denials if denial.position != position]
        if copy.left_out:
            denials.append(Denial(position, copy.target, len(copy.left_out)))
        named = [(at, bookie) for at, bookie in zip(self.positions, self.bookies, strict=False) if at != position]
        return self._with_lost(stripe, lost, named, denials)

    def after_finding(self, stripe: Stripe, found: EntryRuns) -> LostFragment | None:
        """Return the loss without the entries in ``found``, of which a bookie has a copy; None if nothing is left."""
        named = list(zip(self.positions, self.bookies, strict=False))
        return self._with_lost(stripe, self.lost_entries.without(found), named, self.denials)

    def _with_lost(
        self, stripe: Stripe, lost: EntryRuns, named: Sequence[tuple[int, BookieId]], denials: Iterable[Denial]
    ) -> LostFragment | None:
        if not lost:
            return None
        first, last = self.first_entry_id, self.last_entry_id
        storing = [(at, bookie) for at, bookie in named if stripe.held_count(at, lost, first, last)]
        positions = tuple(at for at, _ in storing)
        return replace(
            self,
            positions=positions,
            bookies=tuple(bookie for _, bookie in storing),
            denials=tuple(sorted(denials, key=lambda denial: denial.position)),
            entries=lost.groups,
            shared=shared_positions(stripe, positions, lost, first, last),
        )

    def with_denials_only(self) -> LostFragment:
        """Return the loss as long as copies of all its positions may make it, apart from names of bookies."""
        count = self.last_entry_id - self.first_entry_id + 1
        named = zip(self.positions, self.bookies, strict=False)
        added = tuple(Denial(position, bookie, count) for position, bookie in named)
        return replace(self, positions=(), bookies=(), shared=(), denials=(*self.denials, *added))

    def covers(self, positions: Sequence[int], bookies: Collection[BookieId], absent: int) -> bool:
        """Return whether a loss without ids covers all entries denied by bookies in the fragment.

        Args:
            positions: the positions with missing entries.
            bookies: their bookies.
            absent: total number of missing copies there.
        """
        denied = [denial for denial in self.denials if denial.position in positions]
        return (
            not self.entries
            and len(denied) == len(positions)
            and {denial.bookie for denial in denied}.issuperset(bookies)
            and absent <= sum(denial.entries for denial in denied)
        )


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision about one ledger."""

    ledger_id: LedgerId
    verdict: DecisionKind
    by: str
    at_ms: int
    reason: str
    park_reason: ParkReason | None = None
    """Why the ledger was parked; None if it was no longer parked."""
    lost: tuple[LostFragment, ...] = ()
    """The accepted losses, by first entry."""
    ledger_ctime_ms: int | None = None
    """The creation time in the metadata of the ledger; None if it has none, and in records of earlier releases."""

    def is_of(self, metadata: LedgerMetadata) -> bool:
        """Return whether the ledger may be the one that was judged: a ledger may be deleted and its id used again."""
        return self.may_be_created_at(metadata.ctime_ms)

    def may_be_created_at(self, ctime_ms: int | None) -> bool:
        """Return the same for the creation time in the metadata of the ledger; None: the metadata has none."""
        return self.ledger_ctime_ms is None or self.ledger_ctime_ms == ctime_ms

    @property
    def bookies(self) -> tuple[BookieId, ...]:
        """The unregistered bookies of all accepted losses, without duplicates."""
        return tuple(dict.fromkeys(bookie for fragment in self.lost for bookie in fragment.bookies))

    @property
    def copies(self) -> Copies:
        """The copies of whole positions on unregistered bookies, of all accepted losses: they need no repair."""
        return frozenset(
            (fragment.first_entry_id, position, bookie)
            for fragment in self.lost
            for position, bookie in fragment.whole()
        )

    def copies_in(self, metadata: LedgerMetadata) -> Copies:
        """Return ``copies``, or nothing if the metadata is that of another ledger with the same id."""
        return self.copies if self.is_of(metadata) else frozenset()

    def after_copies(self, stripe: Stripe, copies: Iterable[AcceptedCopy]) -> Decision:
        """Return the record after these copies."""
        decision = self
        for copy in copies:
            fragment = decision.loss_of(copy.first_entry_id)
            if fragment is not None:
                decision = decision._with_fragment(fragment, fragment.after_copy(stripe, copy))
        return decision

    def after_finding(self, stripe: Stripe, first_entry_id: EntryId, found: EntryRuns) -> Decision:
        """Return the record after a bookie served ``found``, entries of a fragment: they are not lost any more."""
        fragment = self.loss_of(first_entry_id)
        if fragment is None or not fragment.entries:
            return self
        return self._with_fragment(fragment, fragment.after_finding(stripe, found))

    def without_fragment(self, first_entry_id: EntryId) -> Decision:
        """Return the record without the loss of a fragment."""
        return replace(self, lost=tuple(each for each in self.lost if each.first_entry_id != first_entry_id))

    def loss_of(self, first_entry_id: EntryId) -> LostFragment | None:
        """Return the accepted loss of the fragment with this first entry; None if it has none."""
        return next((fragment for fragment in self.lost if fragment.first_entry_id == first_entry_id), None)

    def _with_fragment(self, before: LostFragment, after: LostFragment | None) -> Decision:
        """Return the record with ``after`` in place of ``before``, or with neither if it would have too many groups."""
        more = 0 if after is None else len(after.entries) - len(before.entries)
        if more > 0 and sum(len(each.entries) for each in self.lost) + more > LOST_GROUPS_MAX:
            after = None
        kept = (after if each is before else each for each in self.lost)
        return replace(self, lost=tuple(each for each in kept if each is not None))

    @property
    def has_room_for_ids(self) -> bool:
        """Whether a record has room for the ids of the lost entries, including its growth by copies.

        A copy replaces a lost bookie by a denial, which is longer. The other half of the node is for longer names of
        bookies and more groups of entries.
        """
        groups = sum(len(fragment.entries) for fragment in self.lost)
        grown = replace(self, lost=tuple(fragment.with_denials_only() for fragment in self.lost))
        return groups <= LOST_GROUPS_MAX and len(encode_record(grown, without=["ledger_id"])) <= NODE_DATA_MAX // 2

    @property
    def is_accepted(self) -> bool:
        """Whether the loss was accepted."""
        return self.verdict is DecisionKind.LOSS_ACCEPTED

    def is_valid(self, registered: AbstractSet[BookieId]) -> bool:
        """Return whether the accepted loss still holds: a bookie that is registered again may have the copies (R45)."""
        return registered.isdisjoint(self.bookies)


def accepted_in(accepted: Mapping[LedgerId, Decision], ledger_id: LedgerId, metadata: LedgerMetadata) -> Copies:
    """Return the copies of a ledger whose loss was accepted.

    Args:
        accepted: valid accepted losses, by ledger.
        ledger_id: the ledger.
        metadata: its metadata.
    """
    decision = accepted.get(ledger_id)
    return frozenset() if decision is None else decision.copies_in(metadata)


class AcceptedCopy(NamedTuple):
    """A copy of a position of a fragment with an accepted loss: its target has all entries except ``left_out``."""

    first_entry_id: EntryId
    """The first entry of the fragment."""
    position: int
    target: BookieId
    left_out: EntryRuns


class RecordedDecision(NamedTuple):
    """A decision, and the version of its node."""

    decision: Decision
    version: int


def shared_positions(
    stripe: Stripe, positions: Sequence[int], lost: EntryRuns, first: EntryId, last: EntryId
) -> tuple[int, ...]:
    """Return those of ``positions`` that store an entry of ``first..last`` that is not in ``lost``."""
    return tuple(
        position
        for position in positions
        if stripe.held_count(position, lost, first, last) < stripe.count(position, first, last)
    )


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
        known = await self.read(ledger_id)
        return None if known is None else known.decision

    async def list(self) -> builtins.list[Decision]:
        """Return every decision, by ledger id. Two requests, or a few more for very many decisions.

        A record that is damaged or may not be read is left out.

        Raises:
            StoreUnavailableError: no answer.
        """
        await self._store.sync(self._parent)
        ids = ledger_ids(await child_names(self._store, self._parent))
        found = await read_each_permitted(self._store.get_many_data, [self.path(ledger_id) for ledger_id in ids])
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

    async def read(self, ledger_id: LedgerId) -> RecordedDecision | None:
        """Return the decision about a ledger with its version, no older than this call; None if missing or damaged.

        Raises:
            StoreUnavailableError: no answer.
        """
        path = self.path(ledger_id)
        await self._store.sync(path)
        return self.recorded(ledger_id, await find(self._store, path))

    def recorded(self, ledger_id: LedgerId, node: Node | None) -> RecordedDecision | None:
        """Return the decision in a node; None if there is no node or it is damaged."""
        decision = None if node is None else _decode(ledger_id, node.data)
        return None if node is None or decision is None else RecordedDecision(decision, node.stat.version)

    def replacing(self, known: RecordedDecision, decision: Decision) -> SetData:
        """Return an operation that replaces a recorded decision at its version, for the transaction of a repair.

        Raises:
            InvariantError: it is too large, although the acceptance left room for it (``has_room_for_ids``).
        """
        data = encode_record(decision, without=["ledger_id"])
        if len(data) > NODE_DATA_MAX:
            raise InvariantError(f"the accepted loss of ledger {decision.ledger_id} has {len(data)} bytes after a copy")
        return SetData(self.path(decision.ledger_id), data, known.version)

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


def _decode(ledger_id: LedgerId, data: bytes | AccessDeniedError) -> Decision | None:
    try:
        if isinstance(data, AccessDeniedError):
            raise data
        decision = decode_record(data, Decision, ledger_id=ledger_id)
        for fragment in decision.lost:
            _check_entries(fragment)
    except (UnreadableRecordError, AccessDeniedError) as error:
        _log.warning("accepted loss cannot be read and is ignored", extra={"ledger_id": ledger_id, "error": str(error)})
        return None
    return decision


def _check_entries(fragment: LostFragment) -> None:
    """Check that the groups of entry ids are possible, ascending and within the fragment.

    Raises:
        UnreadableRecordError: they are not.
    """
    end = int(fragment.first_entry_id)
    for group in fragment.entries:
        span = group.last_start - group.first
        is_possible = group.size > 0 and (0 < group.period <= span and span % group.period == 0 if span else True)
        is_possible = is_possible and (group.size < group.period if span else not group.period)
        if not is_possible or group.first < end or group.last > fragment.last_entry_id:
            raise UnreadableRecordError(f"impossible entries {tuple(group)} of fragment {fragment.first_entry_id}")
        end = group.last + 1
