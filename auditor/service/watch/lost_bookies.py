"""Decides about lost bookies: which of them are due, when to check again, and whether the mass-loss brake holds.

Pure. The invariant: a bookie is due only if nothing holds it back (``marking_times``: its own delay has passed since an
auditor first saw it down, A4, and the other rules have ended), the pause after an outage of ZooKeeper is over, no
completed audit has covered this loss, and the brake does not hold (S12). The same is true for the critical ledgers of a
bookie, whose delay is shorter (R70). They need an audit of their own, because only an audit can find them.

The caller (``bookie_watch``) stores the first-seen-down time before it decides, and the time of the audit only after a
complete audit. So a leader that dies at any point loses nothing: the next one continues the delay from the stored time,
and a loss that no complete audit covers is due again. If it was marked already, marking it again changes nothing (R22).
The record of a bookie that returns is deleted, and its next absence begins a new delay.

The delay is ``lostBookieRecoveryDelay``, shared with Apache's auditor. Apache's auditor ends the delay when a second
bookie is lost; here each bookie has its own delay. Otherwise a rolling restart with overlaps, or the simultaneous
reboot of two machines, would cause copies of data that is available again after a minute. The urgency is not derived
from the number of losses, but from the metadata: ledgers with one copy left. An operator who wants no delay sets it to
0. Setting the delay to its current value starts an audit of every lost bookie at once.

A and S rules are defined in docs/invariants.md, R rules in docs/failure-model.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from auditor.api.control import LostBookie
from bookie.metadata.bookies.first_seen_down import Down, unaudited
from bookie.metadata.bookies.marking_times import MarkingPolicy, MarkingTimes
from bookie.model.ids import BookieId
from spark_jobs.runs.marking.brake import held_because

WITHOUT_COOKIE_MAX: Final = 10_000
"""Lost bookies without a cookie that are watched: more than any cluster has bookies. The ledgers of further ones are
found by any audit."""


@dataclass(frozen=True, slots=True)
class ClusterObservation:
    """The cluster as the leader sees it."""

    known: AbstractSet[BookieId]
    """Bookies with a cookie."""
    registered: AbstractSet[BookieId]
    """Writable or read-only."""
    without_cookie: AbstractSet[BookieId]
    """Lost bookies whose cookie was deleted, see ``lost_without_cookie``."""
    first_seen_down: Mapping[BookieId, Down]
    """The recorded losses; a lost bookie without a record is first seen down now."""
    policy: MarkingPolicy
    settle_until_ms: int = 0
    """No bookie is due before this time: after an outage of the store, bookies need a moment to register again."""


@dataclass(frozen=True, slots=True)
class LostBookiesDecision:
    """The decision about lost bookies."""

    lost: tuple[LostBookie, ...]
    due: frozenset[BookieId]
    """Bookies to be audited now: nothing holds them back, and no audit has covered them.

    Empty while the brake holds.
    """
    critical_due: frozenset[BookieId]
    """Bookies to be audited now for their critical ledgers only. Empty while the brake holds."""
    next_check_ms: int | None
    """When the next bookie is due if nothing changes; None: no bookie waits."""
    held_because: str
    """Why the brake holds; empty: it does not."""

    @property
    def wanted(self) -> frozenset[tuple[BookieId, bool]]:
        """The bookies to be audited now, each with whether only its critical ledgers are due."""
        return frozenset((b, False) for b in self.due) | frozenset((b, True) for b in self.critical_due)


def lost_without_cookie(
    cookies: AbstractSet[BookieId],
    registered: AbstractSet[BookieId],
    noted: Mapping[BookieId, Down],
    seen: AbstractSet[BookieId] = frozenset(),
) -> frozenset[BookieId]:
    """Return the lost bookies whose cookie was deleted (R142).

    A deleted cookie does not show that no ledger names the bookie. So its loss counts until an audit is complete.

    Args:
        cookies: bookies with a cookie.
        registered: writable or read-only.
        noted: the recorded losses.
        seen: bookies that were registered before.
    """
    found = (unaudited(noted) | seen) - cookies - registered
    return frozenset(sorted(found, key=lambda bookie: (bookie not in noted, bookie))[:WITHOUT_COOKIE_MAX])


def decide(watched: ClusterObservation, now_ms: int, missing_share_max: float) -> LostBookiesDecision:
    """Decide. ``missing_share_max`` is the largest tolerated share of missing bookies, 0 to 1.

    The brake counts lost bookies without a cookie only if no other bookie is known. If no ledger names such a bookie,
    the brake would otherwise prevent the audit that finds this out. The audit counts those that ledgers name, before it
    marks anything.
    """
    lost = (watched.known | watched.without_cookie) - watched.registered
    everyone = watched.known | watched.registered or watched.without_cookie
    held = held_because(everyone, watched.registered, 0, None, missing_share_max) or ""
    down = {bookie: watched.first_seen_down.get(bookie, Down(now_ms)) for bookie in lost}
    times = {
        bookie: watched.policy.times(bookie, loss).no_earlier_than(watched.settle_until_ms)
        for bookie, loss in down.items()
    }
    open_cases = {bookie for bookie in lost if not down[bookie].audited_ms}
    waiting = {bookie for bookie in open_cases if times[bookie].due_ms > now_ms}
    critical = {bookie for bookie in waiting if not down[bookie].critical_audited_ms}
    critical_due = {bookie for bookie in critical if times[bookie].critical_due_ms <= now_ms}
    next_ms = [times[bookie].due_ms for bookie in waiting]
    next_ms += [times[bookie].critical_due_ms for bookie in critical - critical_due]
    return LostBookiesDecision(
        lost=tuple(
            _shown(bookie, down[bookie], times[bookie], bookie in open_cases, now_ms) for bookie in sorted(lost)
        ),
        due=frozenset() if held else frozenset(open_cases - waiting),
        critical_due=frozenset() if held else frozenset(critical_due),
        next_check_ms=min(next_ms, default=None),
        held_because=held,
    )


def _shown(bookie: BookieId, down: Down, times: MarkingTimes, is_open: bool, now_ms: int) -> LostBookie:
    if not is_open:
        return LostBookie(bookie, down.since_ms, 0)
    reason, detail = (times.reason.value, times.detail) if times.due_ms > now_ms else ("", "")
    return LostBookie(bookie, down.since_ms, times.due_ms, times.critical_due_ms, reason, detail)
