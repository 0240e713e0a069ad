"""Decides whether bookies may be stopped now, from ledger metadata and the registered bookies. Pure.

A registered member of a closed fragment has its copies, unless the ledger is marked as lacking them. A member with a
mark may still have them, for example after it returned with the same disks. So it does not count as a remaining copy,
but stopping it may remove the last copy. In a fragment that may still grow, an acknowledged entry is certainly on
``Qa`` of its ``Qw`` bookies, but it is unknown on which (docs/formats.md#apache-worker). So it certainly keeps a copy
only if more than ``Qw - Qa`` of these bookies remain.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Collection, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final

from auditor.safety.scan import Shape
from bookie.client.errors import NotEnoughBookiesError
from bookie.client.placement.placement import Placement
from bookie.metadata.bookies.registration import Bookies
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import LedgerMetadata
from bookie.runtime.human import counted

_SAMPLE_SEED: Final = 0
"""Seed of the sample ensembles, so that the same request has the same answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Risk:
    """A fragment whose entries would have too few copies left."""

    ledger_id: LedgerId
    first_entry_id: EntryId
    copies_left: int
    """The number of remaining bookies of the worst write set."""
    copies_needed: int
    is_growing: bool
    """Whether a writer may still write to it, so that not every copy is certain."""
    members: tuple[BookieId, ...]
    """Those of the bookies to stop that have a part of it."""


def worst_fragment_risk(
    ledger_id: LedgerId,
    metadata: LedgerMetadata,
    live: AbstractSet[BookieId],
    stopping: AbstractSet[BookieId],
    *,
    is_strict: bool,
    doubted: AbstractSet[BookieId] = frozenset(),
) -> Risk | None:
    """Return the worst fragment of a ledger; None if each entry keeps enough copies, or loses none by the stop.

    Args:
        ledger_id: the ledger.
        metadata: its metadata.
        live: registered bookies, including those to be stopped.
        stopping: bookies to be stopped.
        is_strict: whether each entry must keep an ack quorum of copies, instead of one.
        doubted: bookies that may lack their copies.
    """
    risks: list[Risk] = []
    least = metadata.ack_quorum if is_strict else 1
    for index, fragment in enumerate(metadata.fragments):
        going = stopping & live & set(fragment.members)
        if not going:
            continue
        is_growing = metadata.final_last_entry_id(index) is None
        certain = metadata.write_quorum - metadata.ack_quorum + 1
        needed = max(1, least, certain) if is_growing else max(1, least)
        left = _copies_left(metadata, index, live, stopping, doubted)
        if left is not None and left < needed:
            named = tuple(sorted(going))
            risks.append(
                Risk(
                    ledger_id=ledger_id,
                    first_entry_id=fragment.first_entry_id,
                    copies_left=left,
                    copies_needed=needed,
                    is_growing=is_growing,
                    members=named,
                )
            )
    return min(risks, key=_risk_sort_key, default=None)


@dataclass(slots=True)
class Worst:
    """The worst of many risks, and their number."""

    kept_max: int
    count: int = 0
    _heap: list[tuple[int, int, int, Risk]] = field(default_factory=list)

    def add(self, risk: Risk) -> None:
        """Count a ledger at risk."""
        self.count += 1
        lacking = risk.copies_needed - risk.copies_left
        entry = (-risk.copies_left, lacking, -risk.ledger_id, risk)
        if len(self._heap) < self.kept_max:
            heapq.heappush(self._heap, entry)
        elif self._heap:
            heapq.heappushpop(self._heap, entry)

    @property
    def risks(self) -> list[Risk]:
        """The kept risks, the worst first."""
        return [risk for *_, risk in sorted(self._heap, reverse=True)]


def room_problems(
    shapes: Iterable[Shape],
    bookies: Bookies,
    leaving: Collection[BookieId],
    placement: Placement,
    *,
    are_copies_moved: bool = False,
) -> list[str]:
    """Return the problems of placing ensembles of these shapes without ``leaving``; empty: there are none.

    A shortage that exists already, and is not worse without these bookies, does not count.

    Args:
        shapes: shapes of ensembles that may be needed.
        bookies: the registered bookies.
        leaving: bookies that must not be chosen for new ensembles.
        placement: policy and topology.
        are_copies_moved: whether the copies on them need new places; read-only bookies can be such places as well.
    """
    writable = bookies.writable - placement.draining
    after = writable - set(leaving)
    if after == writable and not are_copies_moved:
        return []
    found: list[str] = []
    for shape in sorted(set(shapes), reverse=True):
        name = f"ensembles of {counted(shape.ensemble_size, 'bookie')} (write quorum {shape.write_quorum})"
        if len(after) < shape.ensemble_size:
            found.append(f"{name} are in use and {counted(len(after), 'writable bookie')} would be left")
            continue
        shortfall = _shortfall(shape, after, placement)
        if shortfall is None:
            found.append(f"{name} are in use, and the strict placement policy would not be met any more")
        elif shortfall > (_shortfall(shape, writable, placement) or 0):
            found.append(f"{name} are in use, and would span too few racks, zones or regions")
    return found


def _shortfall(shape: Shape, usable: AbstractSet[BookieId], placement: Placement) -> int | None:
    try:
        placed = placement.place(usable, shape.ensemble_size, shape.write_quorum, (), random.Random(_SAMPLE_SEED))
    except NotEnoughBookiesError:
        return None
    return placed.adherence.shortfall


def _copies_left(
    metadata: LedgerMetadata,
    index: int,
    live: AbstractSet[BookieId],
    stopping: AbstractSet[BookieId],
    doubted: AbstractSet[BookieId],
) -> int | None:
    """Return the smallest number of remaining copies of any entry on a bookie to stop; None: there is no such entry."""
    fragment = metadata.fragments[index]
    last = metadata.fragment_last_entry_id(index)
    left: list[int] = []
    for start in metadata.stripe.starts(fragment.first_entry_id, last):
        holders = {fragment.members[position] for position in metadata.stripe.write_set(start)} & live
        if not holders.isdisjoint(stopping):
            left.append(len(holders - stopping - doubted))
    return min(left, default=None)


def _risk_sort_key(risk: Risk) -> tuple[int, int]:
    return risk.copies_left, -(risk.copies_needed - risk.copies_left)
