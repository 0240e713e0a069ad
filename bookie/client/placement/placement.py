"""Choose bookies by policy, location and free space. Choices share no state.

Candidates are put into a random order, in which those with much free space tend to come first. The first ones that suit
the policy are chosen. So the load is spread without coordination, and equal candidates and random numbers give equal
choices.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from bookie.client.errors import NotEnoughBookiesError
from bookie.client.placement.judge import EnsembleJudge
from bookie.client.placement.search import Search
from bookie.model.ids import BookieId
from bookie.model.spread import DEFAULT_PLACEMENT_POLICY, Adherence, PlacementPolicy, adherence
from bookie.model.topology import Level, Topology, domain
from bookie.runtime.fault_points import fault_point
from bookie.runtime.human import agreeing, counted

__all__ = ["PlacedEnsemble", "Placement", "PlacementPolicy"]

_WEIGHT_MIN: Final = 0.001
"""Weight of a bookie without free space, relative to the median. It is still writable, so it is chosen last."""
_SHOWN_MAX: Final = 8
"""Maximum number of failure domains named in an error."""


@dataclass(frozen=True, slots=True)
class PlacedEnsemble:
    """A new ensemble, and the verdict on it by the policy."""

    members: tuple[BookieId, ...]
    adherence: Adherence


@dataclass(slots=True, eq=False)
class Placement:
    """Chooses the bookies of ensembles. All users of the same ports share one placement.

    ``topology``, ``free_bytes`` and ``draining`` are replaced as a whole by newer values. By default nothing is known
    about the bookies, and the choice is random.
    """

    policy: PlacementPolicy = DEFAULT_PLACEMENT_POLICY
    topology: Topology = field(default_factory=Topology)
    free_bytes: Mapping[BookieId, int] | None = None
    """Free bytes of the reporting bookies; the others count as the median."""
    draining: frozenset[BookieId] = frozenset()
    """Bookies that are never chosen, even if they are registered, because they are to leave the cluster."""
    reported: set[str] = field(default_factory=set)
    """Kinds of ignored requests for groups that were already logged."""
    _judge: EnsembleJudge | None = field(default=None, repr=False)
    """The last judge; ``_judged`` contains its policy and topology."""
    _judged: tuple[PlacementPolicy, Topology] | None = field(default=None, repr=False)

    def judge(self) -> EnsembleJudge:
        """Return the judge of existing ensembles by the current policy and topology."""
        known = self._judged
        if self._judge is None or known is None or known[0] is not self.policy or known[1] is not self.topology:
            self._judge = EnsembleJudge.of(self.policy, self.topology)
            self._judged = self.policy, self.topology
        return self._judge

    def place(
        self,
        candidates: Collection[BookieId],
        ensemble_size: int,
        write_quorum: int,
        exclude: Collection[BookieId],
        rng: random.Random,
    ) -> PlacedEnsemble:
        """As ``ensemble``, but also return the verdict on the choice."""
        usable = sorted(set(candidates) - set(exclude) - self.draining)
        if len(usable) < ensemble_size:
            raise NotEnoughBookiesError(self._too_few_bookies_message(candidates, usable, ensemble_size))
        members: list[BookieId | None] = [None] * ensemble_size
        found = self._fill(members, write_quorum, usable, rng)
        if found is None:
            raise NotEnoughBookiesError(self._too_few_domains_message(usable, ensemble_size, write_quorum))
        return PlacedEnsemble(found, self.adherence(found, write_quorum))

    def ensemble(
        self,
        candidates: Collection[BookieId],
        ensemble_size: int,
        write_quorum: int,
        ack_quorum: int,
        exclude: Collection[BookieId],
        rng: random.Random,
    ) -> tuple[BookieId, ...]:
        """Return distinct bookies for a new ensemble, in the order of its positions.

        Every write set spans the required domains if some choice of candidates achieves it. Otherwise as few domains as
        possible are missing.

        Args:
            candidates: the writable bookies.
            ensemble_size: ``E``.
            write_quorum: ``Qw``.
            ack_quorum: ``Qa``; no present policy depends on it.
            exclude: bookies that are not chosen.
            rng: chooses among equivalent candidates.

        Raises:
            NotEnoughBookiesError: there are too few; or the policy is strict, and they are in too few domains.
        """
        return self.place(candidates, ensemble_size, write_quorum, exclude, rng).members

    def replacement(
        self,
        members: Sequence[BookieId],
        position: int,
        write_quorum: int,
        candidates: Collection[BookieId],
        exclude: Collection[BookieId],
        rng: random.Random,
    ) -> BookieId | None:
        """Return a bookie for one position of an ensemble; None if there is no candidate.

        The bookie is neither a member (S9) nor excluded, and no other candidate would bring the ensemble closer to the
        policy. With a strict policy the bookie adds nothing to the shortfall of the other members; the result is None
        if every candidate would add to it.
        """
        return self.replacements(members, (position,), write_quorum, candidates, exclude, rng).get(position)

    def replacements(
        self,
        members: Sequence[BookieId],
        positions: Collection[int],
        write_quorum: int,
        candidates: Collection[BookieId],
        exclude: Collection[BookieId],
        rng: random.Random,
    ) -> dict[int, BookieId]:
        """Return bookies for several positions, see ``replacement``. Chosen together, they can be better.

        If there are too few candidates, the first positions get bookies and the others keep their members. With a
        strict policy, positions for which no candidate is permitted keep their members, too.
        """
        usable = sorted(set(candidates) - set(members) - set(exclude) - self.draining)
        wanted = sorted(set(positions))
        chosen: dict[int, BookieId] = {}
        for end in range(min(len(wanted), len(usable)), 0, -1):
            chosen = self._replaced(members, wanted[:end], write_quorum, usable, rng)
            if chosen:
                break
        for position in wanted:
            if position not in chosen and len(chosen) < len(usable):
                chosen = self._replaced(members, [*chosen, position], write_quorum, usable, rng) or chosen
        return chosen

    def filled(
        self,
        members: Sequence[BookieId],
        positions: Collection[int],
        write_quorum: int,
        candidates: Sequence[BookieId],
        rng: random.Random,
    ) -> tuple[BookieId, ...] | None:
        """Return the ensemble with other bookies in ``positions``; None if there are too few candidates.

        The choice is the best one by the policy of ``judge``, even if that policy is strict and not met.

        Args:
            members: the ensemble.
            positions: the positions to be replaced.
            write_quorum: ``Qw``.
            candidates: bookies that are not members, sorted.
            rng: chooses among equivalent candidates.
        """
        if len(candidates) < len(positions):
            return None
        places = [None if at in positions else self.topology.location_of(member) for at, member in enumerate(members)]
        order = [(bookie, self.topology.location_of(bookie)) for bookie in self._shuffled(candidates, rng)]
        needs = self.judge().policy.needs(min(write_quorum, len(members)))
        found = Search(places, write_quorum, needs, order).run(is_strict=False)
        if found is None:
            return None
        chosen = dict(zip(sorted(positions), found.bookies, strict=True))
        return tuple(chosen.get(at, member) for at, member in enumerate(members))

    def adherence(self, members: Sequence[BookieId], write_quorum: int) -> Adherence:
        """Return the verdict on an ensemble by the policy."""
        return adherence(members, write_quorum, self.policy, self.topology)

    def _replaced(
        self,
        members: Sequence[BookieId],
        positions: Collection[int],
        write_quorum: int,
        usable: Sequence[BookieId],
        rng: random.Random,
    ) -> dict[int, BookieId]:
        """Return bookies for all of the positions; empty if they cannot all be filled."""
        slots = [None if position in positions else member for position, member in enumerate(members)]
        found = self._fill(slots, write_quorum, usable, rng)
        return {} if found is None else dict(zip(sorted(positions), found, strict=True))

    def _fill(
        self, slots: Sequence[BookieId | None], write_quorum: int, usable: Sequence[BookieId], rng: random.Random
    ) -> tuple[BookieId, ...] | None:
        """Return bookies for the open positions; None if the policy is strict and cannot be met."""
        places = [None if member is None else self.topology.location_of(member) for member in slots]
        order = [(bookie, self.topology.location_of(bookie)) for bookie in self._shuffled(usable, rng)]
        if not self.policy.is_strict and len({place for _, place in order}) == 1:  # bookies of one rack are equivalent
            return tuple(bookie for bookie, _ in order[: places.count(None)])
        needs = self.policy.needs(min(write_quorum, len(slots)))
        found = Search(places, write_quorum, needs, order).run(is_strict=self.policy.is_strict)
        return None if found is None else found.bookies

    def _shuffled(self, usable: Sequence[BookieId], rng: random.Random) -> list[BookieId]:
        """Return the bookies in a weighted random order: each next one is drawn by weight from the rest.

        Each bookie uses one random number, regardless of the weights, so a small change of the weights seldom changes
        the order.
        """
        weights = self.weights(usable)
        waits = {bookie: -math.log(1.0 - rng.random()) / weights.get(bookie, 1.0) for bookie in usable}
        order = sorted(usable, key=lambda bookie: waits[bookie])
        return order[::-1] if fault_point("placement.least_wanted_first") else order

    def weights(self, usable: Sequence[BookieId]) -> dict[BookieId, float]:
        """Return the weights: free space relative to the median, within bounds. Bookies left out have the weight 1."""
        free = {bookie: self.free_bytes[bookie] for bookie in usable if self.free_bytes and bookie in self.free_bytes}
        middle = median(free.values()) if free else 0
        if middle <= 0:
            return {}
        return {bookie: max(_WEIGHT_MIN, min(b / middle, self.policy.weight_max)) for bookie, b in free.items()}

    def _too_few_bookies_message(
        self, candidates: Collection[BookieId], usable: Sequence[BookieId], ensemble_size: int
    ) -> str:
        writable = len(set(candidates))
        excluded = f", {writable - len(usable)} of them excluded or drained" if writable > len(usable) else ""
        needed, are = counted(ensemble_size, "bookie"), agreeing(writable, "is", "are")
        return (
            f"the ledger needs {needed} and {writable} {are} registered writable{excluded}; "
            "start more bookies or ask for a smaller ensemble"
        )

    def _too_few_domains_message(self, usable: Sequence[BookieId], ensemble_size: int, write_quorum: int) -> str:
        needs = self.policy.needs(write_quorum)
        asked = " and ".join(counted(needed, level.value) for level, needed in needs)
        level = next((each for each, needed in needs if len(self._domain_counts(usable, each)) < needed), Level.RACK)
        domains = self._domain_counts(usable, level)
        shown = ", ".join(f"{name} has {count}" for name, count in sorted(domains.items())[:_SHOWN_MAX])
        more = f", and {counted(len(domains) - _SHOWN_MAX, f'more {level.value}')}" if len(domains) > _SHOWN_MAX else ""
        among = counted(len(usable), "usable bookie")
        return (
            f"each write set of {write_quorum} must span {asked}, and no ensemble of {ensemble_size} was found among "
            f"the {among} that does so: {shown}{more}; start bookies in other {level.value}s, "
            "or use a policy that is not strict"
        )

    def _domain_counts(self, usable: Sequence[BookieId], level: Level) -> Counter[str]:
        return Counter(domain(self.topology.location_of(bookie), level) for bookie in usable)
