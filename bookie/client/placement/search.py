"""The search of placement: fill the open positions of an ensemble so that its write sets are well spread.

Bookies of one rack are equivalent, and so are equally large racks and zones from which no bookie was taken yet. So few
different ensembles remain, and a search through them in random order is quick. The result is exact (an ensemble with
the smallest possible shortfall) unless the search takes more than ``STEPS_MAX`` steps; then it is the best ensemble
found so far. With seven bookies, in any topology, a search never takes so many steps.

The measure is the shortfall of ``model.spread``: a bookie that adds no new domain to a write set is a duplicate there,
and a write set can have ``Qw - needed`` duplicates at each level without a shortfall.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from bookie.model.ids import BookieId
from bookie.model.schedule import Stripe
from bookie.model.topology import Level, Location, domain
from bookie.runtime.fault_points import fault_point

STEPS_MAX: Final = 200_000
"""Maximum number of candidates and write sets that one search examines. In the worst case this takes a fraction of a
second and blocks the event loop."""
EAGER_STEPS_MAX: Final = 20_000
"""Part of these steps for the first attempt, in the random order. It nearly always succeeds at once, or never."""


@dataclass(frozen=True, slots=True)
class FilledEnsemble:
    """Bookies for the open positions, in their order."""

    bookies: tuple[BookieId, ...]
    added: int
    """Shortfall beyond the part caused by the other positions alone."""


_Key = tuple[str, str]
"""A failure domain in the search: its kind and its name."""


@dataclass(slots=True)
class _WriteSet:
    """One level of one write set, with the positions filled so far."""

    level: Level
    affordable: int
    """Number of duplicates that cause no shortfall."""
    duplicates: int = 0
    members: Counter[str] = field(default_factory=Counter)

    def cost_of(self, name: str) -> int:
        return 1 if self.members[name] and self.duplicates >= self.affordable else 0

    def add(self, name: str) -> None:
        self.duplicates += 1 if self.members[name] else 0
        self.members[name] += 1

    def remove(self, name: str) -> None:
        self.members[name] -= 1
        self.duplicates -= 1 if self.members[name] else 0


class Search:
    """One search. Each instance runs only once."""

    def __init__(
        self,
        places: Sequence[Location | None],
        write_quorum: int,
        needs: Sequence[tuple[Level, int]],
        order: Sequence[tuple[BookieId, Location]],
    ) -> None:
        """Prepare a search.

        Args:
            places: the location of the bookie in each position; None for an open position.
            write_quorum: ``Qw``.
            needs: minimum number of domains per level, each at most ``write_quorum``.
            order: the candidates, most preferred first, at least as many as there are open positions.
        """
        self._order = order
        self._open = [position for position, place in enumerate(places) if place is None]
        self._names = {place: {level: domain(place, level) for level, _ in needs} for _, place in order}
        self._sets_at: list[list[_WriteSet]] = [[] for _ in places]
        self._unavoidable = 0
        """Shortfall that no choice avoids, beyond the part caused by the other positions alone."""
        for positions in Stripe(len(places), write_quorum).write_sets():
            for level, needed in needs:
                self._add_write_set(places, positions, level, max(0, len(positions) - needed))
        self._kinds = _CandidateKinds([place for _, place in order], {level for level, _ in needs}, len(self._open))
        self._used: set[BookieId] = set()
        self._racks = [None if place is None else self._kinds.path(place)[2] for place in places]
        self._taken: Counter[_Key] = Counter()
        for place in places:
            if place is not None:
                self._taken.update(self._kinds.path(place))
        self._steps = 0

    def run(self, *, is_strict: bool) -> FilledEnsemble | None:
        """Fill the open positions; None if the result falls short and ``is_strict``."""
        if self._unavoidable and is_strict:
            return None
        found = None if fault_point("placement.farthest_first") else self._best(self._unavoidable, is_eager=True)
        return found or self._best(self._unavoidable if is_strict else None, is_eager=False)

    def _add_write_set(
        self, places: Sequence[Location | None], positions: Sequence[int], level: Level, affordable: int
    ) -> None:
        made = _WriteSet(level, affordable)
        for position in positions:
            self._sets_at[position].append(made)
            place = places[position]
            if place is not None:
                made.add(domain(place, level))
        open_count = sum(1 for position in positions if places[position] is None)
        new = {names[level] for names in self._names.values() if not made.members[names[level]]}
        surely = made.duplicates + max(0, open_count - len(new))
        self._unavoidable += max(0, surely - affordable) - max(0, made.duplicates - affordable)

    def _best(self, cost_max: int | None, *, is_eager: bool) -> FilledEnsemble | None:
        """Return the ensemble with the lowest cost, at most ``cost_max``; None if there is none.

        An eager search takes the candidates in the given order, any other one takes the best choices first.
        """
        chosen: list[tuple[BookieId, Location, int]] = []
        best: FilledEnsemble | None = None
        cost = 0
        steps_max = EAGER_STEPS_MAX if is_eager else STEPS_MAX
        rounds = [self._choices(0, cost_max, is_eager=is_eager)]
        while rounds:
            if len(chosen) == len(rounds):  # back at this position: undo its last choice
                bookie, place, added = chosen.pop()
                self._undo(self._open[len(chosen)], bookie, place)
                cost -= added
            is_over = self._steps > steps_max and (best is not None or cost_max is not None)
            choice = None if is_over else next(rounds[-1], None)
            if choice is None or (cost_max is not None and cost + choice[2] > cost_max):
                rounds.pop()
                continue
            self._do(self._open[len(chosen)], *choice[:2])
            chosen.append(choice)
            cost += choice[2]
            if len(chosen) < len(self._open):
                left = None if cost_max is None else cost_max - cost
                rounds.append(self._choices(len(chosen), left, is_eager=is_eager))
                continue
            best = FilledEnsemble(tuple(bookie for bookie, _, _ in chosen), cost)
            if cost <= self._unavoidable:
                break
            cost_max = cost - 1
        return best

    def _choices(self, index: int, cost_max: int | None, *, is_eager: bool) -> Iterator[tuple[BookieId, Location, int]]:
        """Yield one bookie of each kind with its cost at an open position: in the given order (eager), or best first.

        The best has the lowest cost, then the rack farthest from this position in the ensemble, then the rack with the
        most bookies left.
        """
        found = self._candidates_at(self._open[index], cost_max)
        if is_eager:
            return found
        near = self._nearness(self._open[index])

        def rank(choice: tuple[BookieId, Location, int]) -> tuple[int, int, int]:
            rack = self._kinds.path(choice[1])[2]
            return choice[2], near.get(rack, 0), self._taken[rack] - self._kinds.size(rack)

        return iter(sorted(found, key=rank))

    def _nearness(self, position: int) -> dict[_Key, int]:
        """Return how near each rack of the ensemble comes to a position; greater means nearer."""
        size = len(self._racks)
        near: dict[_Key, int] = {}
        for away in range(1, size // 2 + 1):
            for at in (position - away, position + away):
                rack = self._racks[at % size]
                if rack is not None:
                    near.setdefault(rack, size - away)
        return near

    def _candidates_at(self, position: int, cost_max: int | None) -> Iterator[tuple[BookieId, Location, int]]:
        seen: set[tuple[object, ...]] = set()
        for bookie, place in self._order:
            self._steps += 1
            if bookie in self._used:
                continue
            kind = self._kinds.kind(place, self._taken)
            if kind in seen:
                continue
            seen.add(kind)
            names, sets = self._names[place], self._sets_at[position]
            self._steps += len(sets)
            cost = sum(each.cost_of(names[each.level]) for each in sets)
            if cost_max is None or cost <= cost_max:
                yield bookie, place, cost

    def _do(self, position: int, bookie: BookieId, place: Location) -> None:
        self._used.add(bookie)
        self._taken.update(self._kinds.path(place))
        self._racks[position] = self._kinds.path(place)[2]
        names = self._names[place]
        for each in self._sets_at[position]:
            each.add(names[each.level])

    def _undo(self, position: int, bookie: BookieId, place: Location) -> None:
        self._used.remove(bookie)
        self._taken.subtract(self._kinds.path(place))
        self._racks[position] = None
        names = self._names[place]
        for each in self._sets_at[position]:
            each.remove(names[each.level])


class _CandidateKinds:
    """The kinds of candidates. Swapping two candidates of one kind, with their domains, changes no shortfall."""

    def __init__(self, places: Sequence[Location], levels: Collection[Level], open_count: int) -> None:
        self._levels = levels
        self._paths: dict[Location, tuple[_Key, _Key, _Key]] = {}
        counts = Counter(self.path(place)[2] for place in places)
        self._sizes = {rack: min(count, open_count) for rack, count in counts.items()}
        below: dict[_Key, dict[_Key, None]] = {}
        for region, zone, rack in self._paths.values():
            below.setdefault(zone, {})[rack] = None
            below.setdefault(region, {})[zone] = None
        shapes: dict[object, int] = {}

        def shape(key: _Key) -> int:
            if key in self._sizes:
                return -self._sizes[key]
            return shapes.setdefault(tuple(sorted(shape(each) for each in below[key])), len(shapes))

        self._shapes = {key: shape(key) for key in below}

    def path(self, place: Location) -> tuple[_Key, _Key, _Key]:
        """Return the region, zone and rack of a location; levels without a requirement are merged."""
        known = self._paths.get(place)
        if known is None:
            region = domain(place, Level.REGION) if Level.REGION in self._levels else ""
            zone = domain(place, Level.ZONE) if Level.ZONE in self._levels else region
            rack = place if Level.RACK in self._levels else zone
            known = self._paths[place] = (("region", region), ("zone", zone), ("rack", rack))
        return known

    def size(self, rack: _Key) -> int:
        """Return the number of candidates in a rack, at most the number of open positions."""
        return self._sizes[rack]

    def kind(self, place: Location, taken: Counter[_Key]) -> tuple[object, ...]:
        """Return the kind of the candidates at ``place``; ``taken`` counts the bookies chosen from each domain."""
        region, zone, rack = self._paths[place]
        if taken[rack]:
            return (rack,)
        if taken[zone]:
            return (zone, self._sizes[rack])
        if taken[region]:
            return (region, self._shapes[zone], self._sizes[rack])
        return (self._shapes[region], self._shapes[zone], self._sizes[rack])
