"""What to do about lost bookies: which delays have passed, when to look again, and whether the mass-loss brake holds.

Pure. The invariant: a bookie is due only if its own delay has passed since an auditor first saw it down (A4), the pause
after an outage of ZooKeeper is over, no completed audit has covered this loss, and the brake does not hold (S12).

The caller (``bookie_watch``) stores the first-seen-down time before it decides, and the time of the audit only after a
complete audit. So a leader that dies at any point loses nothing: the next one continues the delay from the stored time,
and a loss that no complete audit covers is due again. If it was marked already, marking it again changes nothing (R22).
The record of a bookie that returns is deleted, and its next absence begins a new delay.

The delay is ``lostBookieRecoveryDelay``, shared with Apache's auditor. Apache's auditor gives it up as soon as two
bookies are lost; here each bookie keeps its own. Otherwise a rolling restart that overlaps, or two machines that reboot
together, would cause copies of data that is back in a minute. Urgency is not guessed from the number of losses: an
operator who wants no delay sets it to 0, and setting the delay to its current value starts an audit of every lost
bookie at once.

A and S rules are defined in docs/invariants.md, R rules in docs/failure-model.md.
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
