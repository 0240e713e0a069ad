"""What to do about lost bookies: which delays have passed, when to look again, and whether the mass-loss brake holds.

Pure.

The delay (``lostBookieRecoveryDelay``, shared with Apache's auditor) counts for each bookie from when it was first seen
down, and has no effect if the bookie returns before its end. Apache's auditor gives up the delay as soon as two bookies
are lost; here each keeps its own. A rolling restart that overlaps, or two machines that reboot together, would
otherwise copy data that is back in a minute; and the urgency after a second loss is not guessed from the number of
losses: an operator who wants no delay sets it to 0, and setting the delay to its current value starts an audit of every
lost bookie at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from auditor.api.control import LostBookie
from bookie.metadata.bookies.first_seen_down import Down
from bookie.model.ids import BookieId
from spark_jobs.runs.brake import held_because


@dataclass(frozen=True, slots=True)
class BookieLook:
    """What the leader sees."""

    known: AbstractSet[BookieId]
    """Bookies with a cookie."""
    registered: AbstractSet[BookieId]
    """Writable or read-only."""
    first_seen_down: Mapping[BookieId, Down]
    """Known bookies that are not registered; one that is not in here is first seen down now."""
    delay_s: int
    settle_until_ms: int = 0
    """After an outage of the store: bookies need a moment to register again, so nothing is due before."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What follows."""

    lost: tuple[LostBookie, ...]
    due: frozenset[BookieId]
    """To be audited now: the delay has passed, and no audit has covered them.

    Empty while the brake holds.
    """
    excused: frozenset[BookieId]
    """Lost, and still within the delay: no audit may mark their ledgers."""
    next_look_ms: int | None
    """The end of the next delay if nothing changes; None: there is no delay."""
    held_because: str
    """Why the brake holds; empty: it does not."""


def lost_now(known: AbstractSet[BookieId], registered: AbstractSet[BookieId]) -> frozenset[BookieId]:
    """Bookies that are known and not registered."""
    return frozenset(known - registered)


def decide(watched: BookieLook, now_ms: int, missing_share_max: float) -> Decision:
    """Decide. ``missing_share_max`` is the largest share of the known bookies that may be missing, 0 to 1."""
    lost = lost_now(watched.known, watched.registered)
    everyone = watched.known | watched.registered
    held = held_because(everyone, watched.registered, 0, None, missing_share_max) or ""
    down = {bookie: watched.first_seen_down.get(bookie, Down(now_ms)) for bookie in lost}
    due_ms = {bookie: max(down[bookie].due_ms(watched.delay_s), watched.settle_until_ms) for bookie in lost}
    open_cases = {bookie for bookie in lost if not down[bookie].audited_ms}
    waiting = {bookie for bookie in open_cases if due_ms[bookie] > now_ms}
    entries = tuple(
        LostBookie(bookie, down[bookie].since_ms, due_ms[bookie] if bookie in open_cases else 0)
        for bookie in sorted(lost)
    )
    return Decision(
        lost=entries,
        due=frozenset() if held else frozenset(open_cases - waiting),
        excused=frozenset(waiting),
        next_look_ms=min((due_ms[bookie] for bookie in waiting), default=None),
        held_because=held,
    )
