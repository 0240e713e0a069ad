"""Choose bookies by policy, location and free space. Choices share no state.

Candidates are put into a random order, those with much free space rather at its front; the first ones suitable for the
policy are taken. So the load spreads by itself, and equal candidates and an equal rng give equal choices.
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
from bookie.model.spread import STANDARD, Adherence, PlacementPolicy, adherence
from bookie.model.topology import Level, Topology, domain
from bookie.runtime.fault_points import fault_point
from bookie.runtime.human import agreeing, counted

__all__ = ["PlacedEnsemble", "Placement", "PlacementPolicy"]

_WEIGHT_MIN: Final = 0.001
"""Weight of a bookie without free space, in medians: chosen only if no other is left, because it is still writable."""
_SHOWN_MAX: Final = 8
"""Failure domains named in an error."""


@dataclass(frozen=True, slots=True)
class PlacedEnsemble:
    """A new ensemble, and how far it falls short of the policy."""

    members: tuple[BookieId, ...]
    adherence: Adherence


@dataclass(slots=True, eq=False)
class Placement:
    """Chooses the bookies of ensembles; everything that runs on the same ports shares one.

    ``topology``, ``free_bytes`` and ``draining`` are replaced as a whole when something newer is known. By default
    nothing is known of any bookie: the choice is random.
    """

    policy: PlacementPolicy = STANDARD
    topology: Topology = field(default_factory=Topology)
    free_bytes: Mapping[BookieId, int] | None = None
    """Free bytes of the reporting bookies; the others count as the median."""
    draining: frozenset[BookieId] = frozenset()
    """Never chosen, even if registered: they are to leave the cluster."""
    reported: set[str] = field(default_factory=set)
    """Kinds of ignored wishes already logged."""
    _judge: EnsembleJudge | None = field(default=None, repr=False)
    """The last one, made from ``_judged``."""
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
        """As ``ensemble``, with the verdict on the choice."""
        usable = sorted(set(candidates) - set(exclude) - self.draining)
        if len(usable) < ensemble_size:
            raise NotEnoughBookiesError(self._too_few(candidates, usable, ensemble_size))
        members: list[BookieId | None] = [None] * ensemble_size
        found = self._fill(members, write_quorum, usable, rng)
        if found is None:
            raise NotEnoughBookiesError(self._too_close(usable, ensemble_size, write_quorum))
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
        """Distinct bookies for a new ensemble, in the order of its positions.

        Every write set spans the required domains if some choice of candidates achieves it; otherwise, as a best
        effort, as few as possible are missing.

        Args:
            candidates: the writable bookies.
            ensemble_size: ``E``.
            write_quorum: ``Qw``.
            ack_quorum: ``Qa``; no policy of today depends on it.
            exclude: never chosen.
            rng: decides among equals.

        Raises:
            NotEnoughBookiesError: there are too few, or, with a strict policy, in too few racks, zones or regions.
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
        """Return a bookie for one position of an ensemble, no member of it (S9) and not excluded; None if there is no
        candidate.

        It makes the ensemble fall short of the policy by as little as any candidate would. With a strict policy it adds
        nothing to the shortfall of the other members, and the result is None if no candidate does.
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
        """As ``replacement`` for several positions, chosen together: better than one after another.

        If there are too few candidates, the first positions get theirs and the others keep their members. With a strict
        policy, so do positions for which no candidate is permitted.
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
        """Return the ensemble with other bookies in ``positions``: the best by the policy of ``judge``, strict or not.

        None if there are too few candidates.

        Args:
            members: the ensemble.
            positions: those to be replaced.
            write_quorum: ``Qw``.
            candidates: no members, sorted.
            rng: decides among equals.
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
        """Whether an ensemble keeps the policy, and how it falls short."""
        return adherence(members, write_quorum, self.policy, self.topology)

    def _replaced(
        self,
        members: Sequence[BookieId],
        positions: Collection[int],
        write_quorum: int,
        usable: Sequence[BookieId],
        rng: random.Random,
    ) -> dict[int, BookieId]:
        """Bookies for all of the positions, or none."""
        slots = [None if position in positions else member for position, member in enumerate(members)]
        found = self._fill(slots, write_quorum, usable, rng)
        return {} if found is None else dict(zip(sorted(positions), found, strict=True))

    def _fill(
        self, slots: Sequence[BookieId | None], write_quorum: int, usable: Sequence[BookieId], rng: random.Random
    ) -> tuple[BookieId, ...] | None:
        """Return the bookies for the open positions; None if the policy is strict and cannot be kept."""
        places = [None if member is None else self.topology.location_of(member) for member in slots]
        order = [(bookie, self.topology.location_of(bookie)) for bookie in self._shuffled(usable, rng)]
        if not self.policy.is_strict and len({place for _, place in order}) == 1:  # in one rack, all are alike
            return tuple(bookie for bookie, _ in order[: places.count(None)])
        needs = self.policy.needs(min(write_quorum, len(slots)))
        found = Search(places, write_quorum, needs, order).run(is_strict=self.policy.is_strict)
        return None if found is None else found.bookies

    def _shuffled(self, usable: Sequence[BookieId], rng: random.Random) -> list[BookieId]:
        """Weighted random order: each next one is drawn from the rest with its weight as the probability.

        One draw for each bookie, regardless of the weights, so a small change of them seldom changes the order.
        """
        weights = self.weights(usable)
        waits = {bookie: -math.log(1.0 - rng.random()) / weights.get(bookie, 1.0) for bookie in usable}
        order = sorted(usable, key=lambda bookie: waits[bookie])
        return order[::-1] if fault_point("placement.least_wanted_first") else order

    def weights(self, usable: Sequence[BookieId]) -> dict[BookieId, float]:
        """Free space in medians, bounded, for bookies with a known value; the others have the weight 1."""
        free = {bookie: self.free_bytes[bookie] for bookie in usable if self.free_bytes and bookie in self.free_bytes}
        middle = median(free.values()) if free else 0
        if middle <= 0:
            return {}
        return {bookie: max(_WEIGHT_MIN, min(b / middle, self.policy.weight_max)) for bookie, b in free.items()}

    def _too_few(self, candidates: Collection[BookieId], usable: Sequence[BookieId], ensemble_size: int) -> str:
        writable = len(set(candidates))
        excluded = f", {writable - len(usable)} of them excluded or drained" if writable > len(usable) else ""
        needed, are = counted(ensemble_size, "bookie"), agreeing(writable, "is", "are")
        return (
            f"the ledger needs {needed} and {writable} {are} registered writable{excluded}; "
            "start more bookies or ask for a smaller ensemble"
        )

    def _too_close(self, usable: Sequence[BookieId], ensemble_size: int, write_quorum: int) -> str:
        needs = self.policy.needs(write_quorum)
        asked = " and ".join(counted(needed, level.value) for level, needed in needs)
        level = next((each for each, needed in needs if len(self._domains(usable, each)) < needed), Level.RACK)
        domains = self._domains(usable, level)
        shown = ", ".join(f"{name} has {count}" for name, count in sorted(domains.items())[:_SHOWN_MAX])
        more = f", and {counted(len(domains) - _SHOWN_MAX, f'more {level.value}')}" if len(domains) > _SHOWN_MAX else ""
        among = counted(len(usable), "usable bookie")
        return (
            f"each write set of {write_quorum} must span {asked}, and no ensemble of {ensemble_size} was found among "
            f"the {among} that does so: {shown}{more}; start bookies in other {level.value}s, "
            "or use a policy that is not strict"
        )

    def _domains(self, usable: Sequence[BookieId], level: Level) -> Counter[str]:
        return Counter(domain(self.topology.location_of(bookie), level) for bookie in usable)
