"""The placement check of one ensemble: a pure function of its members, its write quorum, the groups and the topology.

The rules (R113) are ``bookie.model.spread.adherence`` and, for the bookie groups requested by a ledger,
``bookie.model.isolation.forbidden_members``; replicators use the same rules. If the policy requires more domains than
the topology has, it cannot be met. An ensemble that spans all domains then counts as *as good as possible*, and is a
finding only under a strict policy. An ensemble with a bookie outside the topology is not judged: with Apache's default
rack, the verdict would be a guess. If groups cannot be read, the spread over domains is judged without them.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bookie.metadata.bookies.registration import Bookies
from bookie.model.ids import BookieId
from bookie.model.isolation import BookieGroups, Isolation, allowed_for, forbidden_members, forbidden_members_text
from bookie.model.spread import PlacementPolicy, adherence, count_domains
from bookie.model.topology import Level, Topology


class Spread(enum.Enum):
    """The relation of an ensemble to the policy."""

    MET = "met"
    AS_GOOD_AS_POSSIBLE = "as good as possible"
    MISPLACED = "misplaced"
    UNKNOWN = "unknown"
    UNREADABLE_GROUPS = "unreadable groups"
    """The ensemble spans enough domains, but the groups requested by the ledger cannot be read."""


@dataclass(frozen=True, slots=True)
class PlacementVerdict:
    """The verdict on one ensemble."""

    spread: Spread
    detail: str = ""
    """The bookies outside the groups, the first write set that violates the policy, or what is unknown."""
    is_fixable: bool = False
    """Whether a writable bookie in place of one member would bring the ensemble nearer to the policy."""
    is_outside: bool = False
    """Whether a member is outside the bookie groups of the ledger."""


@dataclass(frozen=True, slots=True)
class PlacementRules:
    """The policy, the topology with its groups, and the bookies of one run."""

    policy: PlacementPolicy
    topology: Topology
    writable: frozenset[BookieId]
    staying: frozenset[BookieId]
    """Registered bookies that are not draining. A repair counts only such members towards the groups of a ledger."""
    domains: Mapping[Level, int]
    """Number of domains at each level."""

    @staticmethod
    def of(
        policy: PlacementPolicy,
        topology: Topology,
        known: Iterable[BookieId],
        bookies: Bookies,
    ) -> PlacementRules:
        """Return the rules for a cluster.

        The number of domains is counted from all ``known`` bookies, registered or not, because an outage moves no
        copies.
        """
        places = [where for bookie in known if (where := topology.known(bookie)) is not None]
        # A read-only view of a mapping cannot be sent to executors.
        sendable = Topology(dict(topology.locations), BookieGroups(dict(topology.groups.names)))
        return PlacementRules(policy, sendable, bookies.writable, bookies.staying, count_domains(places))

    def judge(
        self, members: Sequence[BookieId], write_quorum: int, wish: Isolation | None = None, groups_problem: str = ""
    ) -> PlacementVerdict:
        """Judge one ensemble. Registrations only matter for ``is_fixable``.

        Args:
            members: the ensemble.
            write_quorum: the write quorum of the ledger.
            wish: the groups requested by the ledger.
            groups_problem: why the groups cannot be read.
        """
        found = adherence(members, write_quorum, self.policy, self.topology)
        if found.unknown:
            return PlacementVerdict(
                Spread.UNKNOWN, f"the topology has no location for {', '.join(dict.fromkeys(found.unknown))}"
            )
        outside = forbidden_members(members, wish, self.topology.groups)
        details = [str(found.thin[0])] if found.thin else []
        if wish is not None and outside:
            details.insert(0, forbidden_members_text(outside, wish, self.topology.groups))
        if outside or not (found.is_met or self._is_possible(members, write_quorum)):
            is_fixable = self._is_fixable(members, write_quorum, wish)
            return PlacementVerdict(Spread.MISPLACED, "; ".join(details), is_fixable, bool(outside))
        if groups_problem:
            return PlacementVerdict(Spread.UNREADABLE_GROUPS, groups_problem)
        return PlacementVerdict(Spread.MET if found.is_met else Spread.AS_GOOD_AS_POSSIBLE, "; ".join(details))

    def _is_possible(self, members: Sequence[BookieId], write_quorum: int) -> bool:
        """Return whether the cluster has no more domains than the ensemble spans, and the policy permits this."""
        possible = self.policy.limited_to_domains(self.domains)
        return not self.policy.is_strict and adherence(members, write_quorum, possible, self.topology).is_met

    def _is_fixable(self, members: Sequence[BookieId], write_quorum: int, wish: Isolation | None) -> bool:
        """Return whether replacing one member would help.

        Only one candidate is tried for each rack and group membership, because the others there are equivalent.
        """
        groups, present = self.topology.groups, frozenset(members)
        everyone = self.writable | (self.staying & present)
        allowed = (self.writable - present) & allowed_for(wish, groups, everyone, len(members))
        first, second = (wish.primary, wish.secondary) if wish is not None else (frozenset(), frozenset())
        primary, secondary = groups.among(allowed, first), groups.among(allowed, second)
        spare: dict[tuple[str, bool, bool], BookieId] = {}
        for bookie in sorted(allowed):
            if (where := self.topology.known(bookie)) is not None:
                spare.setdefault((where, bookie in primary, bookie in secondary), bookie)
        now = self._cost(members, write_quorum, wish)
        return any(
            self._cost([*members[:at], bookie, *members[at + 1 :]], write_quorum, wish) < now
            for at in range(len(members))
            for bookie in spare.values()
        )

    def _cost(self, members: Sequence[BookieId], write_quorum: int, wish: Isolation | None) -> tuple[int, int]:
        """Return how far an ensemble is from the policy, in the order that replicators use: the groups come first."""
        outside = forbidden_members(members, wish, self.topology.groups)
        return len(outside), adherence(members, write_quorum, self.policy, self.topology).shortfall
