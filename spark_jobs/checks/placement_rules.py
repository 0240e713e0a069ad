"""The placement check of one ensemble: a pure function of its members, its write quorum and the topology.

The rule itself is ``bookie.model.spread.adherence``. A policy that asks for more domains than the topology has cannot
be met; such an ensemble counts as *as good as possible* when it spans all of them, and is a finding only under a strict
policy. An ensemble with a bookie outside the topology is not judged: Apache's default rack would make a guess of it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bookie.model.ids import BookieId
from bookie.model.spread import PlacementPolicy, adherence, count_domains
from bookie.model.topology import Level, Topology


class Spread(enum.Enum):
    """How an ensemble stands to the policy."""

    MET = "met"
    AS_GOOD_AS_POSSIBLE = "as good as possible"
    MISPLACED = "misplaced"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class PlacementVerdict:
    """The verdict on one ensemble."""

    spread: Spread
    detail: str = ""
    """The first write set at fault, or the bookies that are not known."""
    is_fixable: bool = False
    """Whether replacing one member by a writable bookie outside of the ensemble would bring it nearer to the policy."""


@dataclass(frozen=True, slots=True)
class PlacementRules:
    """Policy, topology and the writable bookies of one run."""

    policy: PlacementPolicy
    topology: Topology
    writable: frozenset[BookieId]
    domains: Mapping[Level, int]
    """How many domains of each level there are."""

    @staticmethod
    def of(
        policy: PlacementPolicy, topology: Topology, bookies: Iterable[BookieId], writable: Iterable[BookieId]
    ) -> PlacementRules:
        """Rules for a cluster with these ``bookies``, registered or not: an outage moves no copies."""
        places = [where for bookie in bookies if (where := topology.known(bookie)) is not None]
        domains = count_domains(places)
        sendable = Topology(dict(topology.locations))  # a read-only view of a mapping cannot be sent to executors
        return PlacementRules(policy, sendable, frozenset(writable), domains)

    def judge(self, members: Sequence[BookieId], write_quorum: int) -> PlacementVerdict:
        """Judge one ensemble. Who is registered does not count, other than for ``is_fixable``."""
        found = adherence(members, write_quorum, self.policy, self.topology)
        if found.unknown:
            return PlacementVerdict(
                Spread.UNKNOWN, f"no location is known of {', '.join(dict.fromkeys(found.unknown))}"
            )
        if found.is_met:
            return PlacementVerdict(Spread.MET)
        if (
            not self.policy.is_strict
            and adherence(members, write_quorum, self.policy.at_most(self.domains), self.topology).is_met
        ):
            return PlacementVerdict(Spread.AS_GOOD_AS_POSSIBLE, str(found.thin[0]))
        return PlacementVerdict(Spread.MISPLACED, str(found.thin[0]), self._is_fixable(members, write_quorum))

    def _is_fixable(self, members: Sequence[BookieId], write_quorum: int) -> bool:
        """One bookie of each rack stands for the others there: only its location counts."""
        now = adherence(members, write_quorum, self.policy, self.topology).shortfall
        spare: dict[str, BookieId] = {}
        for bookie in sorted(self.writable - set(members)):
            if (where := self.topology.known(bookie)) is not None:
                spare.setdefault(where, bookie)
        return any(
            adherence([*members[:at], bookie, *members[at + 1 :]], write_quorum, self.policy, self.topology).shortfall
            < now
            for at in range(len(members))
            for bookie in spare.values()
        )
