"""How the copies of an entry must be spread over failure domains, and whether an ensemble does so.

The unit is the write set: each ``Qw`` consecutive positions of an ensemble, round its end, store some entry. A policy
asks that each of them spans so many racks, zones and regions; never more than it has bookies (as Apache's policies).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bookie.model.errors import PermanentError
from bookie.model.ids import BookieId
from bookie.model.schedule import write_set
from bookie.model.topology import Level, Topology, domain


class InvalidPolicyError(PermanentError):
    """A placement policy that means nothing."""


@dataclass(frozen=True, slots=True)
class PlacementPolicy:
    """How many failure domains each write set must span. Two racks by default, as far as there are any (Apache's)."""

    min_racks: int = 2
    min_zones: int = 1
    min_regions: int = 1
    is_strict: bool = False
    """Refuse if this is impossible, instead of spreading as well as possible."""
    weight_max: float = 3.0
    """A bookie with much free space is chosen at most so many times as often as the median one (Apache's factor)."""

    def __post_init__(self) -> None:
        if min(self.min_racks, self.min_zones, self.min_regions) < 1 or not 1 <= self.weight_max <= 1e6:
            raise InvalidPolicyError(
                f"min_racks {self.min_racks}, min_zones {self.min_zones} and min_regions {self.min_regions} must be "
                f"at least 1, and weight_max {self.weight_max:g} between 1 and 1e6"
            )

    def needs(self, write_quorum: int) -> tuple[tuple[Level, int], ...]:
        """Levels with more than one domain needed, the largest domains first."""
        wanted = ((Level.REGION, self.min_regions), (Level.ZONE, self.min_zones), (Level.RACK, self.min_racks))
        return tuple((level, min(least, write_quorum)) for level, least in wanted if min(least, write_quorum) > 1)


STANDARD: Final = PlacementPolicy()


@dataclass(frozen=True, slots=True)
class ThinWriteSet:
    """A write set in too few failure domains of one level."""

    positions: tuple[int, ...]
    level: Level
    domains: tuple[str, ...]
    """Those it is in."""
    needed: int

    @property
    def missing(self) -> int:
        """How many more domains it needs."""
        return self.needed - len(self.domains)

    def __str__(self) -> str:
        where = ", ".join(map(str, self.positions))
        return f"positions {where} are in {', '.join(self.domains)} and need {self.needed} {self.level.value}s"


@dataclass(frozen=True, slots=True)
class Adherence:
    """The verdict on one ensemble."""

    thin: tuple[ThinWriteSet, ...] = ()
    unknown: tuple[BookieId, ...] = ()
    """Members that the topology does not know; they count as standing together in its default location."""

    @property
    def is_met(self) -> bool:
        """Whether every write set spans what the policy asks for."""
        return not self.thin

    @property
    def shortfall(self) -> int:
        """Domains that are missing, over all write sets and levels; 0 when met."""
        return sum(each.missing for each in self.thin)


def adherence(members: Sequence[BookieId], write_quorum: int, policy: PlacementPolicy, topology: Topology) -> Adherence:
    """Judge an ensemble by a policy. Only the topology counts, not the registrations: an outage moves no copies."""
    thin: list[ThinWriteSet] = []
    places = [topology.location_of(member) for member in members]
    for level, needed in policy.needs(min(write_quorum, len(members))):
        for positions in write_sets(len(members), write_quorum):
            domains = dict.fromkeys(domain(places[position], level) for position in positions)
            if len(domains) < needed:
                thin.append(ThinWriteSet(positions, level, tuple(domains), needed))
    return Adherence(tuple(thin), tuple(member for member in members if topology.known(member) is None))


def write_sets(ensemble_size: int, write_quorum: int) -> list[tuple[int, ...]]:
    """The different write sets of an ensemble, by position: one if the quorum equals the ensemble, else ``E``."""
    if write_quorum >= ensemble_size:
        return [tuple(range(ensemble_size))] if ensemble_size else []
    return [write_set(start, ensemble_size, write_quorum) for start in range(ensemble_size)]
