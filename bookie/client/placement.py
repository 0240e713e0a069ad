"""Choosing bookies: pure functions of the candidates and a source of randomness.

Random choice spreads load and, unlike round robin, needs no shared state. Racks and zones come with the topology.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence

from bookie.model.ids import BookieId


def choose_ensemble(
    candidates: Collection[BookieId], ensemble_size: int, rng: random.Random
) -> tuple[BookieId, ...] | None:
    """``ensemble_size`` distinct bookies in random order, or None where there are too few."""
    if len(candidates) < ensemble_size:
        return None
    return tuple(rng.sample(sorted(candidates), ensemble_size))


def choose_replacement(
    members: Sequence[BookieId], candidates: Collection[BookieId], exclude: Collection[BookieId], rng: random.Random
) -> BookieId | None:
    """A bookie for one position of an ensemble: no member of it (S9), not excluded; None where there is none."""
    usable = sorted(set(candidates) - set(members) - set(exclude))
    return rng.choice(usable) if usable else None
