"""Plan moves of copies for better placement: a pure function of a ledger's metadata, the bookies and the topology.

The invariant: each step replaces a registered member, which stays a source and a member until the metadata names the
other bookie, so no entry ever has fewer copies. As in ``planner``, each step changes one position, and any subset may
be carried out; the next round plans the rest. A growing fragment is left to its writer: no ledger is fenced for its
placement (S2). A new member is writable, in an allowed group of the ledger, in the topology, and not a member of the
fragment (S9). Positions are kept.

The plan makes each closed fragment adhere to the policy with the fewest replacements. If that is impossible, it
contains the fewest replacements for the best possible placement, and a ``Blocked`` for the fragment; if no bookie is
better, only the ``Blocked``. Up to ``MEMBERS_REPLACED_TOGETHER_MAX`` members are replaced together, and up to
``TRIALS_MAX`` ensembles are compared. This is exact for ensembles of up to nine bookies with at most three
replacements. If more are needed, the next round continues.

Targets that already have copies are preferred, so the entries of an earlier attempt are not copied again to another
bookie (R38, R44).

R rules are defined in docs/failure-model.md, S rules in docs/invariants.md.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from bookie.client.placement.judge import EnsembleJudge, PlacementFaults
from bookie.client.placement.placement import Placement
from bookie.metadata.bookies.registration import Bookies
from bookie.metadata.ledgers.ledgers import Versioned
from bookie.metadata.tasks.parked import ParkReason
from bookie.model.availability import finished
from bookie.model.ids import BookieId, EntryId
from bookie.model.isolation import allowed_bookies
from bookie.model.metadata import LedgerMetadata
from replicator.plan.planner import NOTHING_KNOWN, Blocked, Knowledge, Plan
from replicator.plan.steps import Cause, CopyPosition, PositionKey, Step, SwapMember
from replicator.plan.target_choice import Begun

MEMBERS_REPLACED_TOGETHER_MAX: Final = 3
"""The most members of a fragment that are replaced together."""
TRIALS_MAX: Final = 150
"""The most ensembles compared per fragment. Each comparison takes a few milliseconds at most."""

Members = tuple[BookieId, ...]


@dataclass(frozen=True, slots=True)
class _BetterEnsemble:
    members: Members
    faults: PlacementFaults


def plan_moves(
    ledger: Versioned,
    bookies: Bookies,
    placement: Placement,
    knowledge: Knowledge = NOTHING_KNOWN,
    begun: Begun = MappingProxyType({}),
    *,
    steps_max: int | None = None,
) -> Plan:
    """Decide which copies of a healthy ledger to move; see ``planning_moves``."""
    return finished(planning_moves(ledger, bookies, placement, knowledge, begun, steps_max=steps_max))


def planning_moves(
    ledger: Versioned,
    bookies: Bookies,
    placement: Placement,
    knowledge: Knowledge = NOTHING_KNOWN,
    begun: Begun = MappingProxyType({}),
    *,
    steps_max: int | None = None,
) -> Generator[None, None, Plan]:
    """Decide which copies of a healthy ledger to move, and yield after each fragment (see ``run_cooperatively``).

    Args:
        ledger: metadata, read before ``bookies`` were listed (R2).
        bookies: the registered bookies, and the groups.
        placement: policy, topology and free space.
        knowledge: results of earlier rounds.
        begun: targets of copies that earlier attempts began.
        steps_max: the plan ends, and is partial, once it has this many steps. None: no limit.
    """
    moves = _MovePlanner(ledger, bookies, placement, knowledge, begun)
    steps: list[Step] = []
    blocked: list[Blocked] = []
    for index in range(len(ledger.metadata.fragments)):
        if steps_max is not None and len(steps) >= steps_max:
            return Plan(ledger, tuple(steps), tuple(blocked), is_partial=True)
        for verdict in moves.fragment_steps(index):
            if isinstance(verdict, Blocked):
                blocked.append(verdict)
            else:
                steps.append(verdict)
        yield
    return Plan(ledger, tuple(steps), tuple(blocked))


def is_adhering(metadata: LedgerMetadata, judge: EnsembleJudge) -> bool:
    """Whether every fragment with entries, and the last one of an unclosed ledger, adheres to the policy."""
    return all(
        judge.faults(members, metadata.write_quorum, metadata.custom).is_adhering
        for members in dict.fromkeys(
            fragment.members for index, fragment in enumerate(metadata.fragments) if has_entries(metadata, index)
        )
    )


def has_entries(metadata: LedgerMetadata, index: int) -> bool:
    """Whether a fragment has entries, or may still get some. An empty fragment has no copies to place."""
    last = metadata.fragment_last_entry_id(index)
    if last is None:
        return True
    end = last if metadata.last_entry_id is None else min(last, metadata.last_entry_id)
    return end >= metadata.fragments[index].first_entry_id


@dataclass(slots=True)
class _MovePlanner:
    ledger: Versioned
    bookies: Bookies
    placement: Placement
    knowledge: Knowledge
    begun: Begun
    _judge: EnsembleJudge = field(init=False)
    _faults: dict[Members, PlacementFaults] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._judge = self.placement.judge()

    def fragment_steps(self, index: int) -> Iterator[Step | Blocked]:
        metadata = self.ledger.metadata
        fragment = metadata.fragments[index]
        last = metadata.final_last_entry_id(index, is_tail_written=self.knowledge.is_tail_written)
        if not has_entries(metadata, index):
            return
        now = self._faults_of(fragment.members)
        if now.is_adhering:
            return
        if now.unknown:
            yield self._blocked(index, 0, ParkReason.MISPLACED, now.detail)
            return
        if last is None:
            detail = f"{now.detail}; the fragment may still grow, and is left to its writer"
            yield self._blocked(index, 0, ParkReason.OPEN_LEDGER, detail)
            return
        better = self._better(index, now)
        if better is None:
            yield self._blocked(index, 0, *self._why_no_move(index, now))
            return
        changed = [at for at, member in enumerate(fragment.members) if better.members[at] != member]
        for position in changed:
            yield self._step(index, position, better.members[position], last)
        if not better.faults.is_adhering:
            detail = f"{better.faults.detail}, and no registered bookie is better"
            yield self._blocked(index, changed[0], ParkReason.MISPLACED, detail)

    def _better(self, index: int, now: PlacementFaults) -> _BetterEnsemble | None:
        """Return the best ensemble with the fewest replacements; None if none is better than the present one."""
        candidates = self._candidates(index)
        answering = [candidate for candidate in candidates if candidate not in self.knowledge.avoided]
        best: _BetterEnsemble | None = None
        for usable in (answering, candidates):
            best = self._search(index, best.faults if best else now, usable) or best
            if (best is not None and best.faults.is_adhering) or len(answering) == len(candidates):
                break
        return best

    def _search(self, index: int, now: PlacementFaults, candidates: Sequence[BookieId]) -> _BetterEnsemble | None:
        pools = self._pools(candidates)
        best: _BetterEnsemble | None = None
        count = 0
        for positions in itertools.islice(self._choices(index), TRIALS_MAX):
            if best is not None and best.faults.is_adhering and len(positions) > count:
                break
            count = len(positions)
            found = self._filled(index, positions, pools)
            if found is not None and found.faults.cost < (best.faults if best else now).cost:
                best = found
        return best

    def _choices(self, index: int) -> Iterator[tuple[int, ...]]:
        """Yield sets of positions to replace together: small sets first, then those with begun copies, else random."""
        fragment = self.ledger.metadata.fragments[index]
        movable = [position for position in range(len(fragment.members)) if self._is_movable(index, position)]
        self._rng(index).shuffle(movable)
        movable.sort(key=lambda position: (fragment.first_entry_id, position) not in self.begun)
        for count in range(1, min(MEMBERS_REPLACED_TOGETHER_MAX, len(movable)) + 1):
            for chosen in itertools.combinations(movable, count):
                yield tuple(sorted(chosen))

    def _is_movable(self, index: int, position: int) -> bool:
        """Whether a position may move. An unregistered bookie may be restarting, and cannot be read from."""
        key = self._key(index, position)
        return key.bookie in self.bookies.staying and self.knowledge.evidence(key) is None

    def _filled(
        self, index: int, positions: tuple[int, ...], pools: Sequence[Sequence[BookieId]]
    ) -> _BetterEnsemble | None:
        """Return the best ensemble with other bookies in these positions. Among equal ones, the better groups win."""
        metadata = self.ledger.metadata
        members, quorum = metadata.fragments[index].members, metadata.write_quorum
        best: _BetterEnsemble | None = None
        for usable in pools:
            filled = self.placement.filled(members, positions, quorum, usable, self._rng(index))
            if filled is None:
                continue
            found = _BetterEnsemble(filled, self._faults_of(filled))
            for position in positions:
                found = self._prefer_begun_copy(index, position, found, pools[-1])
            if best is None or found.faults.cost < best.faults.cost:
                best = found
            if best.faults.is_adhering:
                break
        return best

    def _pools(self, candidates: Sequence[BookieId]) -> Sequence[Sequence[BookieId]]:
        """Return the candidates in the primary groups, then those whose group is permitted, then all.

        ``Placement.filled`` ignores groups: given all candidates, it could choose one whose group is a fault although
        there are others.
        """
        metadata = self.ledger.metadata
        primary = self._judge.preferred(candidates, metadata.custom)
        permitted = self._judge.permitted(candidates, metadata.custom, metadata.ensemble_size)
        pools = [[each for each in candidates if each in some] for some in (primary, permitted)]
        return [pool for pool in pools if pool and len(pool) < len(candidates)] + [candidates]

    def _prefer_begun_copy(
        self, index: int, position: int, found: _BetterEnsemble, candidates: Sequence[BookieId]
    ) -> _BetterEnsemble:
        """Use the bookie of a begun copy instead if the placement is then no worse."""
        begun = self.begun.get((self.ledger.metadata.fragments[index].first_entry_id, position))
        if begun is None or begun in found.members or begun not in candidates:
            return found
        members = (*found.members[:position], begun, *found.members[position + 1 :])
        faults = self._faults_of(members)
        return _BetterEnsemble(members, faults) if faults.cost <= found.faults.cost else found

    def _candidates(self, index: int) -> list[BookieId]:
        metadata, bookies = self.ledger.metadata, self.bookies
        members = metadata.fragments[index].members
        spare = bookies.writable.difference(members, self.knowledge.failed_targets, self.placement.draining)
        everyone = bookies.writable | bookies.staying.intersection(members)
        allowed = spare & allowed_bookies(metadata.custom, bookies.groups, everyone, metadata.ensemble_size)
        return sorted(bookie for bookie in allowed if self._judge.topology.known(bookie) is not None)

    def _step(self, index: int, position: int, target: BookieId, last: EntryId) -> Step:
        metadata = self.ledger.metadata
        fragment = metadata.fragments[index]
        old, first = fragment.members[position], fragment.first_entry_id
        if metadata.stripe.count(position, first, last) == 0:
            return SwapMember(fragment_index=index, position=position, old=old, target=target, cause=Cause.MISPLACED)
        sources = tuple(member if member in self.bookies.registered else None for member in fragment.members)
        return CopyPosition(
            fragment_index=index,
            position=position,
            old=old,
            target=target,
            cause=Cause.MISPLACED,
            first=first,
            last=last,
            write_quorum=metadata.write_quorum,
            sources=sources,
        )

    def _why_no_move(self, index: int, now: PlacementFaults) -> tuple[ParkReason, str]:
        positions = range(len(self.ledger.metadata.fragments[index].members))
        unreadable = (self.knowledge.evidence(self._key(index, position)) for position in positions)
        evidence = next((text for text in unreadable if text is not None), None)
        if evidence is not None:
            return ParkReason.UNREADABLE_ENTRIES, evidence
        return ParkReason.MISPLACED, f"{now.detail}, and no registered bookie is better"

    def _faults_of(self, members: Members) -> PlacementFaults:
        metadata = self.ledger.metadata
        known = self._faults.get(members)
        if known is None:
            known = self._judge.faults(members, metadata.write_quorum, metadata.custom)
            self._faults[members] = known
        return known

    def _rng(self, index: int) -> random.Random:
        """Return a random generator to spread load. Its seed is the same if the plan is repeated."""
        ledger = self.ledger
        return random.Random(f"{ledger.ledger_id}/{ledger.metadata.fragments[index].first_entry_id}")

    def _key(self, index: int, position: int) -> PositionKey:
        fragment = self.ledger.metadata.fragments[index]
        return PositionKey(fragment.first_entry_id, position, fragment.members[position])

    def _blocked(self, index: int, position: int, reason: ParkReason, detail: str) -> Blocked:
        member = self.ledger.metadata.fragments[index].members[position]
        return Blocked(
            fragment_index=index, position=position, bookie=member, reason=reason, detail=f"fragment {index}: {detail}"
        )
