"""The verdict on the placement of an existing ensemble: violations of the policy, or of the groups of the ledger.

A policy that requires more racks, zones or regions than the topology has cannot be met. Unless it is strict, an
ensemble that spans all of them adheres. An ensemble with members outside the primary groups adheres if these have fewer
bookies than the ensemble, and Pulsar's rule then permits the others (``bookie.model.isolation``). Without a topology,
or if the location of a member is unknown, there is no verdict: with a default rack it would be a guess.

Only the topology counts, not the registered bookies: an outage moves no copies.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from bookie.model.ids import BookieId
from bookie.model.isolation import (
    Isolation,
    forbidden_members,
    forbidden_members_text,
    isolation_of,
    isolation_problem,
    permitted,
)
from bookie.model.spread import PlacementPolicy, adherence, count_domains
from bookie.model.topology import Topology

_DIGITS: Final = 16

Custom = Sequence[tuple[str, bytes]]
"""The custom metadata of a ledger."""


@dataclass(frozen=True, slots=True)
class PlacementFaults:
    """The faults of an ensemble by the policy. Compare ensembles by ``cost``: the smaller, the better."""

    outside: int = 0
    """Members not permitted by the groups of the ledger (``forbidden_members``)."""
    shortfall: int = 0
    """Missing racks, zones and regions over all write sets."""
    unknown: tuple[BookieId, ...] = ()
    """Members without a known location. If there are any, there is no verdict."""
    detail: str = ""

    @property
    def cost(self) -> tuple[int, int]:
        """The measure for comparisons; (0, 0) if the ensemble adheres."""
        return self.outside, self.shortfall

    @property
    def is_adhering(self) -> bool:
        """Whether the ensemble has no fault. False if this is unknown."""
        return not self.unknown and self.cost == (0, 0)


@dataclass(frozen=True, slots=True)
class EnsembleJudge:
    """Judges ensembles by one policy and one topology."""

    policy: PlacementPolicy
    """The policy. Unless it is strict, it requires no more domains than exist."""
    topology: Topology
    fingerprint: str = field(default="")
    """A digest of the policy and the topology: equal ones have the same value in every process."""

    @classmethod
    def of(cls, policy: PlacementPolicy, topology: Topology) -> EnsembleJudge:
        """Return the judge for a policy and a topology."""
        possible = policy if policy.is_strict else policy.limited_to_domains(count_domains(topology.locations.values()))
        content = repr((policy, sorted(topology.locations.items()), _sorted_groups(topology)))
        return cls(possible, topology, hashlib.sha256(content.encode()).hexdigest()[:_DIGITS])

    @property
    def has_topology(self) -> bool:
        """Whether any location of a bookie is known. If not, no ensemble can be judged."""
        return bool(self.topology.locations)

    def faults(self, members: Sequence[BookieId], write_quorum: int, custom: Custom = ()) -> PlacementFaults:
        """Judge one ensemble of a ledger with this custom metadata."""
        found = adherence(members, write_quorum, self.policy, self.topology)
        if found.unknown or not self.has_topology:
            unknown = found.unknown or tuple(members)
            names = ", ".join(dict.fromkeys(unknown))
            return PlacementFaults(unknown=unknown, detail=f"the topology has no location for {names}")
        wish, groups = self._isolation(custom), self.topology.groups
        outside = forbidden_members(members, wish, groups)
        details = [str(found.thin[0])] if found.thin else []
        if wish is not None and outside:
            details.insert(0, forbidden_members_text(outside, wish, groups))
        return PlacementFaults(len(outside), found.shortfall, detail="; ".join(details))

    def preferred(self, bookies: Collection[BookieId], custom: Custom) -> frozenset[BookieId]:
        """Return those of ``bookies`` in the primary groups of the ledger; all of them if it requests none."""
        wish = self._isolation(custom)
        everyone = frozenset(bookies)
        return everyone if wish is None else self.topology.groups.among(everyone, wish.primary)

    def permitted(self, bookies: Collection[BookieId], custom: Custom, ensemble_size: int) -> frozenset[BookieId]:
        """Return those of ``bookies`` that an ensemble of this size may have without a fault (``outside``)."""
        return permitted(bookies, self._isolation(custom), self.topology.groups, ensemble_size)

    def _isolation(self, custom: Custom) -> Isolation | None:
        """Return the groups of the ledger; None if it has no primary ones, or if they cannot be respected."""
        if not custom or not self.topology.groups.names or isolation_problem(custom, self.topology.groups) is not None:
            return None
        wish = isolation_of(custom)
        return wish if wish is not None and wish.primary else None


def _sorted_groups(topology: Topology) -> list[tuple[str, list[str]]]:
    return [(name, sorted(members)) for name, members in sorted(topology.groups.names.items())]
