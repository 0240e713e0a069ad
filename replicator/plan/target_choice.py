"""Choose the bookie that gets the copies of a position, by the placement policy, free space and load. Pure.

The choice is repeatable: it depends only on the position, the candidates and what earlier attempts have begun. So
the next attempt at a position uses the copies of a failed one (R38, R44, #2166).

R rules are defined in docs/failure-model.md.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from bookie.client.placement.placement import Placement
from bookie.model.ids import BookieId, EntryId, LedgerId
from replicator.plan.steps import PositionKey

Choose = Callable[[PositionKey, Sequence[BookieId], Sequence[BookieId]], BookieId | None]
"""Chooses a target for a position: (position, members of its fragment, sorted candidates) -> a candidate, or None."""

_UNRESTRICTED_PLACEMENT: Final = Placement()

Begun = Mapping[tuple[EntryId, int], BookieId]
"""The targets of earlier partial copies, by the first entry of the fragment and the position."""

PositionCounts = Mapping[BookieId, int]
"""The number of positions that this process is copying to each bookie."""


def target_chooser(
    ledger_id: LedgerId,
    write_quorum: int = 1,
    placement: Placement = _UNRESTRICTED_PLACEMENT,
    begun: Begun = MappingProxyType({}),
    positions: PositionCounts = MappingProxyType({}),
) -> Choose:
    """Return a function that chooses targets by the placement policy, free space and ``positions``.

    Bookies are drawn with their free space as the weight. If the first bookie drawn already receives copies, a second
    one is drawn. The second one is chosen if it receives fewer in proportion to its weight and the policy rates it no
    worse. The draw depends only on the position, so repeated repairs choose the same bookie among equals.

    A target in ``begun`` is preferred if the policy rates it no worse. So the next attempt uses the copies of a failed
    one, and unused copies do not accumulate on other bookies (R38, R44, #2166).
    """

    def choose(key: PositionKey, members: Sequence[BookieId], candidates: Sequence[BookieId]) -> BookieId | None:
        rng = random.Random(f"{ledger_id}/{key.first_entry_id}/{key.position}")  # only to spread load
        chosen = draw(key, members, candidates, rng)
        before = begun.get((key.first_entry_id, key.position))
        if chosen is None or before is None or before not in candidates or before in placement.draining:
            return chosen
        return (
            before if shortfall(before, members, key.position) <= shortfall(chosen, members, key.position) else chosen
        )

    def draw(
        key: PositionKey, members: Sequence[BookieId], candidates: Sequence[BookieId], rng: random.Random
    ) -> BookieId | None:
        first = placement.replacement(members, key.position, write_quorum, candidates, (), rng)
        if first is None or not positions.get(first):
            return first
        second = placement.replacement(members, key.position, write_quorum, candidates, (first,), rng)
        weights = placement.weights(candidates)
        if second is None or share(second, weights) >= share(first, weights):
            return first
        is_worse = shortfall(second, members, key.position) > shortfall(first, members, key.position)
        return first if is_worse else second

    def share(bookie: BookieId, weights: Mapping[BookieId, float]) -> float:
        return positions.get(bookie, 0) / weights.get(bookie, 1.0)

    def shortfall(target: BookieId, members: Sequence[BookieId], position: int) -> int:
        ensemble = [*members[:position], target, *members[position + 1 :]]
        return placement.adherence(ensemble, write_quorum).shortfall

    return choose
