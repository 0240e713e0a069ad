"""Choose the order in which the holders of entries are asked, by a pure function of their known state.

The order affects load and time, never results. In any order, the holders of an entry are asked one after another until
one serves a verified copy, and if all refuse, their answers are the evidence (S6).

Responsive bookies come first; among them, those with a shorter expected time; among those, the nearest to the target.
Times are compared in steps: all times below ``EQUALLY_FAST_S`` are equal, and above it each doubling is a step. So a
bookie in the target's rack is preferred until it is clearly slower. Among equal bookies, each chunk starts with the
next one.

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

EQUALLY_FAST_S: Final = 0.05
"""The expected time below which all bookies are equally fast: that of four chunks of 1 MiB at 100 MB/s."""


class HolderStanding(enum.IntEnum):
    """The first criterion of the order. The smallest value is asked first, at any load."""

    ANSWERS = 0
    NEEDS_IT = 1
    """The holder is itself a target of the entry: it is asked only to complete the evidence."""
    UNRESPONSIVE = 2
    """A request may cost a whole deadline (R42)."""


@dataclass(frozen=True, slots=True)
class HolderView:
    """The known state of one bookie."""

    standing: HolderStanding = HolderStanding.ANSWERS
    expected_s: float = 0.0
    """The expected time until a read that is sent now is answered."""
    distance: int = 0
    """The distance to the nearest target: 0 within one rack."""


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
    """Return the number of steps through the topology to the nearest of ``targets``."""
    return min((hops(locate(source), locate(target)) for target in targets), default=0)


def _step(expected_s: float) -> int:
    return 0 if expected_s < EQUALLY_FAST_S else 1 + math.floor(math.log2(expected_s / EQUALLY_FAST_S))
