"""The plain reference for a placement check: a ledger's ensembles, judged by a topology as people read it. Pure.

It shares no code with ``bookie.model.spread``, ``bookie.model.isolation`` and the rules of the audit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Final

from bookie.model.metadata import LedgerMetadata
from bookie.model.spread import PlacementPolicy

POLICY_KEY: Final = "EnsemblePlacementPolicyConfig"
POLICY_CLASS: Final = "org.apache.pulsar.bookie.rackawareness.IsolatedBookieEnsemblePlacementPolicy"


@dataclass(frozen=True, slots=True)
class Places:
    """Where bookies are, by id or host, and their groups."""

    locations: Mapping[str, str] = field(default_factory=dict)
    groups: Mapping[str, AbstractSet[str]] = field(default_factory=dict)

    @staticmethod
    def read(data: bytes) -> Places | None:
        """Return the content of a node; None if it cannot be read."""
        try:
            content = json.loads(data)
        except ValueError:
            return None
        locations: dict[str, str] = {}
        groups: dict[str, AbstractSet[str]] = {}
        for name, value in content.items():
            if isinstance(value, str):
                locations[name] = value
                continue
            groups[name] = frozenset(value)
            locations |= {bookie: entry["rack"] for bookie, entry in value.items()}
        return Places(locations, groups)

    def location(self, bookie: str) -> str | None:
        return self.locations.get(bookie, self.locations.get(bookie.split(":")[0]))

    def is_in(self, bookie: str, groups: AbstractSet[str]) -> bool:
        named = {name for group in groups for name in self.groups.get(group, ())}
        return bookie in named or bookie.split(":")[0] in named

    def size(self, groups: AbstractSet[str]) -> int:
        return len({name for group in groups for name in self.groups.get(group, ())})


@dataclass(frozen=True, slots=True)
class Wish:
    """The groups that a ledger asks for."""

    primary: AbstractSet[str] = frozenset()
    secondary: AbstractSet[str] = frozenset()
    is_unreadable: bool = False
    is_asked: bool = True
    """Whether the ledger asks for groups, even if it names none."""


NO_WISH: Final = Wish(is_asked=False)


@dataclass(frozen=True, slots=True)
class Placed:
    """The verdict on a fragment with entries."""

    number: int
    verdict: str
    """``met``, ``as good as possible``, ``misplaced``, ``unknown`` or ``unreadable groups``."""
    is_outside: bool = False
    is_fixable: bool = False


@dataclass(frozen=True, slots=True)
class PlacementJudge:
    """A policy, a topology and the bookies."""

    policy: PlacementPolicy
    places: Places
    known: AbstractSet[str]
    writable: AbstractSet[str]
    staying: AbstractSet[str]

    def placed(self, metadata: LedgerMetadata) -> Iterator[Placed]:
        """Yield the verdict on each fragment with entries."""
        wish = wish_of(dict(metadata.custom)) if self.places.groups else NO_WISH
        for number, fragment in enumerate(metadata.fragments):
            last: int | None = metadata.last_entry_id
            if number + 1 < len(metadata.fragments):
                end = metadata.fragments[number + 1].first_entry_id - 1
                last = end if last is None else min(end, last)
            if last is None or last >= fragment.first_entry_id:
                yield self.judged(number, fragment.members, metadata.write_quorum, wish)

    def judged(self, number: int, members: Sequence[str], quorum: int, wish: Wish) -> Placed:
        """Return the verdict on the ensemble of a fragment."""
        if any(self.places.location(member) is None for member in members):
            return Placed(number, "unknown")
        outside, missing = self._outside(members, wish), self._missing(members, quorum, self._needs(quorum))
        existing = [(level, min(least, self._existing(level))) for level, least in self._needs(quorum)]
        is_possible = not self.policy.is_strict and not self._missing(members, quorum, existing)
        if outside or (missing and not is_possible):
            return Placed(number, "misplaced", bool(outside), self._is_fixable(members, quorum, wish))
        if wish.is_unreadable:
            return Placed(number, "unreadable groups")
        return Placed(number, "as good as possible" if missing else "met")

    def _needs(self, quorum: int) -> list[tuple[int, int]]:
        policy = self.policy
        wanted = (policy.min_regions, policy.min_zones, policy.min_racks)
        return [(level, min(least, quorum)) for level, least in enumerate(wanted)]

    def _existing(self, level: int) -> int:
        found = {_domain(where, level) for each in self.known if (where := self.places.location(each)) is not None}
        return len(found)

    def _missing(self, members: Sequence[str], quorum: int, needs: Sequence[tuple[int, int]]) -> int:
        """Return how many domains the write sets lack together."""
        size, missing = len(members), 0
        write_sets = {tuple(sorted((start + i) % size for i in range(quorum))) for start in range(size)}
        for level, least in needs:
            for write_set in write_sets:
                domains = {_domain(self.places.location(members[each]) or "", level) for each in write_set}
                missing += max(0, least - len(domains))
        return missing

    def _outside(self, members: Sequence[str], wish: Wish) -> int:
        """Count the members that the ledger may not have if every bookie of the topology is available."""
        if not wish.primary:
            return 0
        places, size = self.places, len(members)
        outside = 0
        for member in set(members):
            if places.is_in(member, wish.primary):
                continue
            if places.is_in(member, wish.secondary):
                outside += places.size(wish.primary) >= size
            elif places.is_in(member, places.groups.keys()):
                outside += 1
            else:
                outside += places.size(wish.primary | wish.secondary) >= size
        return outside

    def _is_fixable(self, members: Sequence[str], quorum: int, wish: Wish) -> bool:
        """Try every writable bookie in place of every member."""

        def cost(ensemble: Sequence[str]) -> tuple[int, int]:
            return self._outside(ensemble, wish), self._missing(ensemble, quorum, self._needs(quorum))

        now = cost(members)
        return any(
            cost([*members[:position], bookie, *members[position + 1 :]]) < now
            for bookie in self._candidates(members, wish)
            for position in range(len(members))
        )

    def _candidates(self, members: Sequence[str], wish: Wish) -> AbstractSet[str]:
        """Return the writable bookies that repair may choose."""
        places = self.places
        available = self.writable | (self.staying & set(members))
        chosen = available
        if wish.is_asked:
            chosen = {each for each in available if places.is_in(each, wish.primary)}
            if len(chosen) < len(members):
                chosen |= {each for each in available if places.is_in(each, wish.secondary)}
            if len(chosen) < len(members):
                chosen |= {each for each in available if not places.is_in(each, places.groups.keys())}
        found = (chosen & self.writable) - set(members)
        return {each for each in found if places.location(each) is not None}


def wish_of(custom: Mapping[str, bytes]) -> Wish:
    """Return the groups that custom metadata asks for."""
    data = custom.get(POLICY_KEY)
    if data is None:
        return NO_WISH
    try:
        content: Any = json.loads(data)
    except ValueError:
        return Wish(is_unreadable=True, is_asked=False)
    asked = content["properties"]
    primary = frozenset(asked.get("isolationBookieGroups", "").split(",")) - {""}
    secondary = frozenset(asked.get("secondaryIsolationBookieGroups", "").split(",")) - {""}
    return NO_WISH if "*" in primary else Wish(primary, secondary)


def policy_data(primary: str, secondary: str) -> bytes:
    """Return the custom metadata of a ledger that asks for groups, as Pulsar's brokers write it."""
    properties = {"isolationBookieGroups": primary, "secondaryIsolationBookieGroups": secondary}
    return json.dumps({"policyClass": POLICY_CLASS, "properties": properties}).encode()


def _domain(where: str, level: int) -> str:
    """Return the region (0), the zone (1) or the rack (2) of a location."""
    parts = where.strip("/").split("/")
    if level == 2:
        return "/".join(parts)
    if len(parts) == 1:
        return ""
    return "/".join(parts[:-1]) if level == 1 else parts[0]
