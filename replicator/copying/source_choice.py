"""The order in which the holders of entries are asked: a pure function of their known state.

The order affects load and time, never results. In any order, the holders of an entry are asked one after another until
one serves a verified copy, and the refusals of all of them are the evidence (S6).

Responsive bookies come first, then those with a shorter expected time, then those near the target. Times count in
steps: below ``QUICK_S`` all are equal, and above it a step is a doubling of the time. So a bookie in the target's rack
is preferred until it is clearly slower. Among equals the first one changes from chunk to chunk.

S rules are defined in docs/invariants.md.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bookie.model.ids import BookieId
from bookie.model.topology import Location, hops

QUICK_S: Final = 0.05
"""Expected time below which bookies of other racks are not preferred: four chunks of 1 MiB at 100 MB/s."""


class Standing(enum.IntEnum):
    """Which holders are asked first, whatever their load."""

    ANSWERS = 0
    NEEDS_IT = 1
    """Itself a target of the entry: asked only to complete the evidence."""
    UNRESPONSIVE = 2
    """A request may cost a whole deadline (R42)."""


@dataclass(frozen=True, slots=True)
class HolderView:
    """The known state of one bookie."""

    standing: Standing = Standing.ANSWERS
    expected_s: float = 0.0
    """Expected time until the answer to a read sent now."""
    distance: int = 0
    """To the nearest target: 0 within one rack."""


_NOTHING_KNOWN: Final = HolderView()


def source_order(
    holders: Sequence[BookieId], known: Mapping[BookieId, HolderView], chunk_number: int
) -> list[BookieId]:
    """Return all of ``holders`` in the order in which to ask them for the entries of a chunk."""
    cut = chunk_number % len(holders) if holders else 0

    def wanted(bookie: BookieId) -> tuple[int, int, int]:
        view = known.get(bookie, _NOTHING_KNOWN)
        return view.standing, _step(view.expected_s), view.distance

    return sorted((*holders[cut:], *holders[:cut]), key=wanted)


def distance(source: BookieId, targets: Sequence[BookieId], locate: Callable[[BookieId], Location]) -> int:
    """Steps through the topology to the nearest of ``targets``."""
    return min((hops(locate(source), locate(target)) for target in targets), default=0)


def _step(expected_s: float) -> int:
    return 0 if expected_s < QUICK_S else 1 + math.floor(math.log2(expected_s / QUICK_S))
