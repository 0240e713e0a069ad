"""Plan the repair of one ledger: a pure function of its metadata and the registered bookies.

The invariant: any subset of a plan's steps may be carried out at the planned version of the metadata. Each step gives
one position a bookie that has the position's entries, and changes nothing else. Therefore:

- A growing fragment keeps its members and its end, which only its writer may change. A member that is incomplete or has
  damaged copies is filled in place; everything else waits for the writer or for a recovery (S2). Ends come only from
  the metadata (S19).
- A new target is writable, in an allowed group of the ledger, not a member of the fragment (S9) and not planned for
  another position of it. Positions are kept. Read-only bookies are sources, not targets, and not missing (S8).
- While a position waits for a recovery, the plan fills no member in place. The missing entries are the evidence that
  this member lost acknowledged entries. Without this evidence, its denials could decide the end of the ledger (S6).
- An entry whose loss an operator accepted may be missing on every bookie: the copy finds this out, and leaves it out. A
  position of a lost bookie that stores only such entries keeps its bookie, which may return with them (R148).
- For a position that cannot be repaired, the plan contains a ``Blocked`` with the reason, in addition to the steps for
  other positions.

The task is a hint, not an input (R1): the plan replaces every unregistered member unless it is awaited (``absence``),
and every draining member. The metadata is read before the bookies are listed, so a bookie that registers after the read
does not look lost (R2). Steps do not depend on each other: after a crash between two of them, the next plan contains
the rest. An empty plan means that nothing is missing (I18).

The plan does not decide whether copies are readable. Copying finds this out and reports it through ``Knowledge``.

R rules are defined in docs/failure-model.md, S and I rules in docs/invariants.md.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from bookie.metadata.bookies.registration import Bookies
from bookie.metadata.ledgers.ledgers import Versioned
from bookie.metadata.tasks.parked import ParkReason
from bookie.model.availability import finished
from bookie.model.ids import BookieId, EntryId
from bookie.model.isolation import allowed_bookies, isolation_of
from bookie.model.metadata import LedgerMetadata, LedgerState
from bookie.model.schedule import Stripe
from replicator.plan.acceptance import NOTHING_ACCEPTED, Acceptance
from replicator.plan.steps import Cause, CopyPosition, PositionKey, Step, SwapMember
from replicator.plan.target_choice import Choose

_FRAGMENTS_PER_STEP: Final = 500
"""The number of healthy fragments that are judged between two pauses of a plan: a few milliseconds."""
_VERDICT_COST: Final = 100
"""The number of healthy fragments that take as long as one verdict, which may rank a thousand bookies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked:
    """A position that needs a repair which is not possible now."""

    fragment_index: int
    position: int
    bookie: BookieId
    reason: ParkReason
    detail: str


_IN_PLACE: Final = (Cause.INCOMPLETE, Cause.DAMAGED)
"""The causes that are repaired in place if possible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge:
    """Facts that bookies reported, in addition to the metadata. By default nothing is known."""

    is_tail_written: bool = False
    """Whether the last fragment of an unclosed ledger is known to have an entry. Then the end of the one before is
    final.
    """
    incomplete: frozenset[PositionKey] = frozenset()
    """The positions of closed fragments whose registered bookie lacks entries."""
    doubtful: frozenset[PositionKey] = frozenset()
    """The positions of growing fragments whose registered bookie may lack entries that only a recovery can
    determine."""
    lagging: tuple[tuple[PositionKey, EntryId], ...] = ()
    """The positions of growing fragments whose bookie is incomplete, each with the last entry that it should have."""
    lacking: Mapping[PositionKey, frozenset[int]] = field(default_factory=dict)
    """For each of ``incomplete`` and ``lagging``, the write sets of the missing entries, each named by its first
    position. For a position left out, they are unknown."""
    damaged: Mapping[PositionKey, EntryId] = field(default_factory=dict)
    """The positions whose registered bookie has damaged copies of entries with good copies elsewhere, each with the
    last such entry; and the positions of a closed ledger whose bookie could not read some entries (R139), with any
    entry."""
    with_wrong_bytes: frozenset[PositionKey] = frozenset()
    """Those of ``damaged`` with wrong bytes on an Apache bookie. It may serve them again after an add, so another
    bookie is preferred."""
    unreadable: Mapping[PositionKey, str] = field(default_factory=dict)
    """The positions with an entry that every live holder denied, each with the evidence."""
    failed_targets: frozenset[BookieId] = frozenset()
    """Bookies that refused copies of this ledger in this turn."""
    flapping: frozenset[BookieId] = frozenset()
    """Flapping bookies: copies that replace them do not end when they return (R55)."""
    continued: Mapping[PositionKey, BookieId] = field(default_factory=dict)
    """The incomplete positions for which a copy was begun that has more entries than their own bookie, each with the
    target of that copy."""
    acceptance: Acceptance = NOTHING_ACCEPTED
    """The entries that copies may leave out, because an operator accepted their loss (R148)."""
    avoided: frozenset[BookieId] = frozenset()
    """Bookies that have been unreachable for some time. They are targets only if there is no other bookie (R42)."""

    def last_to_fill(self, key: PositionKey) -> EntryId | None:
        """Return the last entry to store in place for a position of a growing fragment; None if there is none."""
        lagging = next((last for known, last in self.lagging if known == key), None)
        damaged = self.damaged.get(key)
        return max((last for last in (lagging, damaged) if last is not None), default=None)

    def evidence(self, key: PositionKey) -> str | None:
        """Return why the position's entries cannot be read; None if unknown."""
        return self.unreadable.get(key)


NOTHING_KNOWN = Knowledge()


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do for one ledger at one version of its metadata."""

    ledger: Versioned
    steps: tuple[Step, ...] = ()
    blocked: tuple[Blocked, ...] = ()
    is_partial: bool = False
    """Whether the plan ends before the last fragment because it has many steps."""

    @property
    def is_nothing_missing(self) -> bool:
        """Whether every position of every fragment has its bookie, so the task is done (I18)."""
        return not self.steps and not self.blocked


def plan_repair(
    ledger: Versioned,
    bookies: Bookies,
    choose: Choose,
    knowledge: Knowledge = NOTHING_KNOWN,
    *,
    steps_max: int | None = None,
) -> Plan:
    """Decide which entries to copy to which bookies, and which positions must wait; see ``planning_repair``."""
    return finished(planning_repair(ledger, bookies, choose, knowledge, steps_max=steps_max))


def planning_repair(
    ledger: Versioned,
    bookies: Bookies,
    choose: Choose,
    knowledge: Knowledge = NOTHING_KNOWN,
    *,
    steps_max: int | None = None,
) -> Generator[None, None, Plan]:
    """Decide which entries to copy to which bookies, and which positions must wait. Pauses if there are many fragments.

    No copy is made in place while the ledger needs a recovery, because missing entries are the evidence from which the
    recovery concludes that a bookie lost its disks.

    Args:
        ledger: metadata, read before ``bookies`` were listed (R2).
        bookies: the registered bookies.
        choose: chooses targets; called once per step.
        knowledge: results of earlier rounds.
        steps_max: the plan of a closed ledger ends after the fragment with which it has this many steps, and is then
            partial. An unclosed ledger is always planned completely, because its last fragments decide whether it
            needs a recovery.
    """
    metadata = ledger.metadata
    steps: list[Step] = []
    blocked: list[Blocked] = []
    is_partial, cost = False, 0
    for index in range(len(metadata.fragments)):
        if steps_max is not None and len(steps) >= steps_max and metadata.is_closed:
            is_partial = True
            break
        if cost >= _FRAGMENTS_PER_STEP:
            yield
            cost = 0
        cost += 1
        fragment = _FragmentPlan(metadata, index, bookies, knowledge)
        for verdict in fragment.verdicts(choose):
            cost += _VERDICT_COST
            if isinstance(verdict, Blocked):
                blocked.append(verdict)
            else:
                steps.append(verdict)
    if any(block.reason is ParkReason.NEEDS_RECOVERY for block in blocked):
        # A copy in place would hide the bookie's loss of acknowledged entries from the recovery (S6).
        steps = [step for step in steps if isinstance(step, SwapMember) or not step.is_in_place]
    return Plan(ledger, tuple(steps), tuple(blocked), is_partial)


def growing_losses(metadata: LedgerMetadata, bookies: Bookies) -> Iterator[PositionKey]:
    """Yield the lost positions that may need a recovery: those in the growing fragments of an unclosed ledger.

    Awaited members are not lost.
    """
    present = bookies.registered | bookies.awaited
    for index in metadata.growing():
        fragment = metadata.fragments[index]
        for position, member in enumerate(fragment.members):
            if member not in present:
                yield PositionKey(fragment.first_entry_id, position, member)


def needs_tail_evidence(
    metadata: LedgerMetadata, bookies: Bookies, doubtful: frozenset[PositionKey] = frozenset()
) -> bool:
    """Whether the plan depends on whether an unclosed ledger's last fragment has an entry."""
    before_last = len(metadata.fragments) - 2
    if metadata.is_closed or before_last < 0:
        return False
    fragment = metadata.fragments[before_last]
    if not bookies.draining.isdisjoint(fragment.members):
        return True
    first = fragment.first_entry_id
    return any(key.first_entry_id == first for key in (*growing_losses(metadata, bookies), *doubtful))


@dataclass(slots=True)
class _FragmentPlan:
    """The verdicts on the positions of one fragment."""

    metadata: LedgerMetadata
    index: int
    bookies: Bookies
    knowledge: Knowledge
    taken: dict[int, BookieId] = field(default_factory=dict)
    """The targets planned so far, by position."""

    def verdicts(self, choose: Choose) -> Iterator[Step | Blocked]:
        last = self.metadata.final_last_entry_id(self.index, is_tail_written=self.knowledge.is_tail_written)
        fragment = self.metadata.fragments[self.index]
        for position, member in enumerate(fragment.members):
            cause = self._cause(position, member, last)
            if cause is not None:
                yield self._verdict(position, cause, last, choose)
            if last is None and (last_to_fill := self.knowledge.last_to_fill(self._key(position))) is not None:
                yield self._fill_in_place(position, last_to_fill)

    def _cause(self, position: int, member: BookieId, last: EntryId | None) -> Cause | None:
        if member in self.bookies.awaited:
            return None
        if member not in self.bookies.registered:
            if self.knowledge.acceptance.is_lost(self._key(position).first_entry_id, position):
                return None
            return Cause.FLAPPING if member in self.knowledge.flapping else Cause.UNREGISTERED
        if member in self.bookies.draining:
            return Cause.DRAINING
        known = self.knowledge.doubtful if last is None else self.knowledge.incomplete
        if self._key(position) in known:
            return Cause.INCOMPLETE
        return Cause.DAMAGED if last is not None and self._key(position) in self.knowledge.damaged else None

    def _verdict(self, position: int, cause: Cause, last: EntryId | None, choose: Choose) -> Step | Blocked:
        first = self.metadata.fragments[self.index].first_entry_id
        old = self.metadata.fragments[self.index].members[position]
        if last is None:
            return self._block_until_end_known(position, cause)
        has_entries = self.metadata.stripe.count(position, first, last) > 0
        if has_entries:
            blocked = self._blocked_by_sources(position, first, last, self._is_filled_in_place(position, cause))
            if blocked is not None:
                return blocked
        target = self._target(position, cause, choose)
        if target is None:
            return self._no_candidate(position)
        self.taken[position] = target
        if not has_entries:
            return SwapMember(fragment_index=self.index, position=position, old=old, target=target)
        return CopyPosition(
            fragment_index=self.index,
            position=position,
            old=old,
            target=target,
            cause=cause,
            first=first,
            last=last,
            write_quorum=self.metadata.write_quorum,
            sources=self._sources(position),
        )

    def _fill_in_place(self, position: int, last: EntryId) -> Step | Blocked:
        """Plan a copy in place, which leaves the fragment's end and members to the writer (S2)."""
        fragment = self.metadata.fragments[self.index]
        member, first = fragment.members[position], fragment.first_entry_id
        blocked = self._blocked_by_sources(position, first, last, is_in_place=True)
        if blocked is not None:
            return blocked
        if member not in self.bookies.writable or member in self.knowledge.failed_targets:
            detail = (
                "lacks entries or has damaged ones, and does not accept copies; do not recover the ledger by "
                "hand until it does"
            )
            return self._blocked(position, ParkReason.OPEN_LEDGER, detail)
        cause = Cause.DAMAGED if self._key(position) in self.knowledge.damaged else Cause.INCOMPLETE
        return CopyPosition(
            fragment_index=self.index,
            position=position,
            old=member,
            target=member,
            cause=cause,
            first=first,
            last=last,
            write_quorum=self.metadata.write_quorum,
            sources=self._sources(position),
        )

    def _block_until_end_known(self, position: int, cause: Cause) -> Blocked:
        """Block the position. A drain fences no ledger, but a recovery that another client began is completed."""
        if cause is Cause.DRAINING and self.metadata.state is LedgerState.OPEN:
            detail = "is left to its writer, which replaces a drained bookie at the next write"
            return self._blocked(position, ParkReason.OPEN_LEDGER, detail)
        return self._blocked(position, ParkReason.NEEDS_RECOVERY, "may still grow: the ledger is not closed")

    def _blocked_by_sources(self, position: int, first: EntryId, last: EntryId, is_in_place: bool) -> Blocked | None:
        """Block the position if its entries cannot be read, have no live copy, or cannot be verified.

        A copy in place needs sources only for the entries that the bookie lacks.
        """
        evidence = self.knowledge.evidence(self._key(position))
        if evidence is not None:
            if self.metadata.digest_type is None:
                evidence += "; the metadata names no digest type, so CRC32 was assumed"
            return self._blocked(position, ParkReason.UNREADABLE_ENTRIES, evidence)
        if self.metadata.password is None and not self.metadata.is_closed:  # its writer has a key; do not guess it
            detail = "the metadata carries no password, and the ledger is not closed: recover it by hand, with its own"
            return self._blocked(position, ParkReason.UNREADABLE_METADATA, detail)
        sources, starts = self._sources(position), self.metadata.stripe.starts(first, last)
        if is_in_place:
            starts &= self.knowledge.lacking.get(self._key(position), starts)
        not_in_own = self._write_sets_not_in_own(position, starts, is_in_place)
        for start in sorted(starts):
            write_set = list(self.metadata.stripe.write_set(start))
            holders = {p for p in write_set if sources[p] is not None}
            if start in not_in_own:
                holders.discard(position)
            if position in write_set and not holders and not self._may_be_left_out(start, first, last):
                detail = f"no registered bookie holds entries of positions {write_set} in entries {first}..{last}"
                return self._blocked(position, ParkReason.NO_LIVE_COPY, detail)
        return None

    def _may_be_left_out(self, start: int, first: EntryId, last: EntryId) -> bool:
        """Whether an operator accepted the loss of every entry with ``entry_id mod E == start``."""
        one_each = Stripe(self.metadata.ensemble_size, 1)  # its position n stores the entries of the write set n
        entries = self.knowledge.acceptance.entries(self.metadata.fragments[self.index].first_entry_id)
        return bool(entries) and one_each.held_count(start, entries, first, last) == one_each.count(start, first, last)

    def _write_sets_not_in_own(self, position: int, starts: frozenset[int], is_in_place: bool) -> frozenset[int]:
        """Return those of ``starts`` whose entries the position's own bookie cannot be the only source of."""
        key = self._key(position)
        if key not in self.knowledge.incomplete or key in self.knowledge.damaged:
            return frozenset()
        return self.knowledge.lacking.get(key, starts if is_in_place else frozenset())

    def _target(self, position: int, cause: Cause, choose: Choose) -> BookieId | None:
        old = self.metadata.fragments[self.index].members[position]
        candidates = self._candidates()
        may_stay = self._may_stay(position, cause)
        if may_stay and self._key(position) not in self.knowledge.with_wrong_bytes:
            continued = self.knowledge.continued.get(self._key(position))
            return continued if continued in candidates else old
        members = [self.taken.get(p, m) for p, m in enumerate(self.metadata.fragments[self.index].members)]
        answering = [candidate for candidate in candidates if candidate not in self.knowledge.avoided]
        for choice in (answering, candidates):
            target = choose(self._key(position), members, choice) if choice else None
            if target is not None:
                return target
        return old if may_stay else None

    def _may_stay(self, position: int, cause: Cause) -> bool:
        """Whether the missing or damaged entries of a position can be stored on its own bookie."""
        old = self.metadata.fragments[self.index].members[position]
        return cause in _IN_PLACE and old in self.bookies.writable and old not in self.knowledge.failed_targets

    def _is_filled_in_place(self, position: int, cause: Cause) -> bool:
        """Whether ``_target`` returns the position's own bookie, because it can be completed."""
        key = self._key(position)
        if not self._may_stay(position, cause) or key in self.knowledge.with_wrong_bytes:
            return False
        return self.knowledge.continued.get(key) not in self._candidates()

    def _candidates(self) -> list[BookieId]:
        """Return the bookies that may be a new target of the fragment, sorted."""
        return sorted(self._in_ledger_groups(self._spare()))

    def _spare(self) -> frozenset[BookieId]:
        used = {*self.metadata.fragments[self.index].members, *self.taken.values()}
        return self.bookies.writable - used - self.knowledge.failed_targets

    def _in_ledger_groups(self, spare: frozenset[BookieId]) -> frozenset[BookieId]:
        """Return the spare bookies in the ledger's groups. The size of a group includes those that failed recently."""
        if not self.metadata.custom or not self.bookies.groups.names:
            return spare
        staying = self.bookies.staying.intersection(self.metadata.fragments[self.index].members)
        everyone = self.bookies.writable | staying
        return spare & allowed_bookies(self.metadata.custom, self.bookies.groups, everyone, self.metadata.ensemble_size)

    def _no_candidate(self, position: int) -> Blocked:
        failed = self.knowledge.failed_targets
        detail = "no writable bookie is registered outside the ensemble"
        if self._candidates():
            detail += " on which the strict placement policy allows a copy"
        elif self._spare():
            detail += f" in bookie groups that the ledger may have: {isolation_of(self.metadata.custom)}"
        if failed:
            detail += f", not counting {', '.join(sorted(failed))} which refused copies"
        return self._blocked(position, ParkReason.NO_CANDIDATE_BOOKIE, detail)

    def _sources(self, position: int) -> tuple[BookieId | None, ...]:
        members = self.metadata.fragments[self.index].members
        registered, draining = self.bookies.registered, self.bookies.draining
        key = self._key(position)
        has_some = key in self.knowledge.damaged or key in self.knowledge.incomplete
        is_read = members[position] in draining or has_some
        return tuple(m if m in registered and (p != position or is_read) else None for p, m in enumerate(members))

    def _key(self, position: int) -> PositionKey:
        fragment = self.metadata.fragments[self.index]
        return PositionKey(fragment.first_entry_id, position, fragment.members[position])

    def _blocked(self, position: int, reason: ParkReason, detail: str) -> Blocked:
        member = self.metadata.fragments[self.index].members[position]
        return Blocked(
            fragment_index=self.index,
            position=position,
            bookie=member,
            reason=reason,
            detail=f"fragment {self.index} position {position}: {detail}",
        )
