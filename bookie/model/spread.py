"""The spread of an entry's copies over failure domains: the policy, and the verdict on an ensemble.

The unit is the write set: every ``Qw`` consecutive positions of an ensemble, wrapping at its end, store some entry. A
policy requires each write set to span a number of racks, zones and regions, but never more than the write set has
bookies (as Apache's policies do).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Final

from bookie.model.errors import PermanentError
from bookie.model.ids import BookieId
from bookie.model.option import Option
from bookie.model.schedule import Stripe
from bookie.model.topology import Level, Location, Topology, domain


class InvalidPolicyError(PermanentError):
    """A placement policy with values out of range."""


@dataclass(frozen=True, slots=True)
class PlacementPolicy:
    """The failure domains each write set must span. By default two racks, if the cluster has them (as Apache)."""

    min_racks: Annotated[int, Option("Racks that each write set must span.", minimum=1, maximum=100)] = 2
    min_zones: Annotated[int, Option("Zones that each write set must span.", minimum=1, maximum=100)] = 1
    min_regions: Annotated[int, Option("Regions that each write set must span.", minimum=1, maximum=100)] = 1
    is_strict: Annotated[
        bool, Option("Refuse a smaller spread, even if the cluster cannot do better.", name="strict_placement")
    ] = False
    """Refuse if the policy cannot be met, instead of spreading the copies as far as possible."""
    weight_max: float = 3.0
    """Highest weight of a bookie with much free space, relative to the median one (Apache's factor)."""

    def __post_init__(self) -> None:
        if min(self.min_racks, self.min_zones, self.min_regions) < 1 or not 1 <= self.weight_max <= 1e6:
            raise InvalidPolicyError(
                f"min_racks {self.min_racks}, min_zones {self.min_zones} and min_regions {self.min_regions} must be "
                f"at least 1, and weight_max {self.weight_max:g} between 1 and 1e6"
            )

    def needs(self, write_quorum: int) -> tuple[tuple[Level, int], ...]:
        """Return each level with more than one required domain, and their number, the largest domains first."""
        wanted = ((Level.REGION, self.min_regions), (Level.ZONE, self.min_zones), (Level.RACK, self.min_racks))
        return tuple((level, min(least, write_quorum)) for level, least in wanted if min(least, write_quorum) > 1)

    def limited_to_domains(self, domains: Mapping[Level, int]) -> PlacementPolicy:
        """Return the policy limited to the existing number of domains, according to ``domains``."""

        def least(wanted: int, level: Level) -> int:
            return max(1, min(wanted, domains.get(level, 0)))

        return replace(
            self,
            min_racks=least(self.min_racks, Level.RACK),
            min_zones=least(self.min_zones, Level.ZONE),
            min_regions=least(self.min_regions, Level.REGION),
        )


def count_domains(places: Iterable[Location]) -> dict[Level, int]:
    """Return the number of different domains of these locations, per level."""
    known = set(places)
    return {level: len({domain(where, level) for where in known}) for level in Level}


DEFAULT_PLACEMENT_POLICY: Final = PlacementPolicy()


@dataclass(frozen=True, slots=True)
class ThinWriteSet:
    """A write set in too few failure domains of one level."""

    positions: tuple[int, ...]
    level: Level
    domains: tuple[str, ...]
    """The domains spanned by the write set."""
    needed: int

    @property
    def missing(self) -> int:
        """The number of further domains needed."""
        return self.needed - len(self.domains)

    def __str__(self) -> str:
        where = ", ".join(map(str, self.positions))
        return f"positions {where} are in {', '.join(self.domains)} and need {self.needed} {self.level.value}s"


@dataclass(frozen=True, slots=True)
class Adherence:
    """The verdict on one ensemble."""

    thin: tuple[ThinWriteSet, ...] = ()
    unknown: tuple[BookieId, ...] = ()
    """Members outside the topology; they count as located together in its default location."""

    @property
    def is_met(self) -> bool:
        """Whether every write set spans the required domains."""
        return not self.thin

    @property
    def shortfall(self) -> int:
        """The number of missing domains over all write sets and levels; 0 if the policy is met."""
        return sum(each.missing for each in self.thin)


def adherence(members: Sequence[BookieId], write_quorum: int, policy: PlacementPolicy, topology: Topology) -> Adherence:
    """Return the verdict on an ensemble. Registrations do not matter, only the topology: an outage moves no copies."""
    thin: list[ThinWriteSet] = []
    places = [topology.location_of(member) for member in members]
    for level, needed in policy.needs(min(write_quorum, len(members))):
        for positions in Stripe(len(members), write_quorum).write_sets():
            domains = dict.fromkeys(domain(places[position], level) for position in positions)
            if len(domains) < needed:
                thin.append(ThinWriteSet(positions, level, tuple(domains), needed))
    return Adherence(tuple(thin), tuple(member for member in members if topology.known(member) is None))
