"""Chooses the topics of open ledgers that a broker is requested to unload next during a drain (pure).

A broker that unloads a topic closes its ledgers, and producers connect again and continue with new ledgers. The
invariant: there is at most one request for a topic in ``UNLOAD_INTERVAL_S_MIN``, whatever the answer was, and a limited
number in total. So producers of a topic that a broker closes without effect, or does not close, are interrupted a
bounded number of times. The drain itself continues without the unloading (R75).
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import quote

from bookie.model.errors import BkhealError, ConflictError, OutcomeUnknownError, PermanentError, TransientError
from bookie.model.ownership import encoded

UNLOAD_INTERVAL_S_MIN: Final = 60.0
"""Shortest time between two requests for the same topic. An idle replicator moves closed ledgers within this time."""
FAILURES_MAX: Final = 5
"""Largest number of consecutive temporary failures of a topic: a broker restarts within this many periods."""
UNLOADS_MAX: Final = 5
"""Largest number of unloadings of a topic. Its next ledger is on the bookie only if the bookie is chosen again."""
AT_ONCE: Final = 4
"""Concurrent requests. They are few, because producers of these topics wait while the broker closes ledgers."""
TOPICS_PER_ROUND_MAX: Final = 16
"""Largest number of topics per check of the drain, so that a slow broker delays the next check by a bounded time."""
_PERSISTENT: Final = "persistent"


class UnloadIneffectiveError(PermanentError):
    """A topic was unloaded ``UNLOADS_MAX`` times, and still has an open ledger on the bookies."""


@dataclass(frozen=True, slots=True)
class Attempts:
    """The requests for one topic."""

    asked_s: float
    """When the last request began, by the clock of the process."""
    unloads: int = 0
    failures: int = 0
    """Number of failures since the last success."""
    error: BkhealError | None = None
    """The error of the last request; None: it succeeded."""

    @property
    def is_over(self) -> bool:
        """Whether there are no more requests for the topic."""
        match self.error:
            case None:
                return self.unloads >= UNLOADS_MAX
            case TransientError() | OutcomeUnknownError() | ConflictError():
                return self.failures >= FAILURES_MAX
            case _:
                return True


def unload_path(topic: str) -> str:
    """Return the path of the request to unload ``topic``, a full name; empty if the admin API has none.

    Each part of the name is encoded so that it cannot change the request, because names come from custom metadata,
    which any client of the bookies can write.
    """
    domain, separator, path = topic.partition("://")
    parts = path.split("/", 2)
    if domain != _PERSISTENT or not separator or len(parts) != 3:
        return ""
    tenant, namespace, local = parts
    if any(part in ("", ".", "..") for part in parts) or "/" in local:  # a slash: version 1, another API
        return ""
    return f"/admin/v2/{domain}/{quote(tenant, safe='')}/{quote(namespace, safe='')}/{encoded(local)}/unload"


def due(open_topics: AbstractSet[str], attempts: Mapping[str, Attempts], now_s: float) -> tuple[str, ...]:
    """Return at most ``TOPICS_PER_ROUND_MAX`` topics to request now: those never requested, then the oldest ones."""
    waiting = [
        (found.asked_s if found else float("-inf"), topic)
        for topic in open_topics
        if unload_path(topic)
        and (
            (found := attempts.get(topic)) is None
            or (not found.is_over and now_s - found.asked_s >= UNLOAD_INTERVAL_S_MIN)
        )
    ]
    return tuple(topic for _, topic in sorted(waiting)[:TOPICS_PER_ROUND_MAX])


def after(before: Attempts | None, asked_s: float, error: BkhealError | None) -> Attempts:
    """Return the record of a topic after a request with the result ``error``; None: it was unloaded."""
    record = replace(before, asked_s=asked_s, error=error) if before else Attempts(asked_s, error=error)
    if error is None:
        return replace(record, unloads=record.unloads + 1, failures=0)
    return replace(record, failures=record.failures + 1)


def kept(attempts: Mapping[str, Attempts], open_topics: AbstractSet[str], now_s: float) -> dict[str, Attempts]:
    """Return the records that are still needed: of open topics, and of topics requested within the period."""
    return {
        topic: record
        for topic, record in attempts.items()
        if topic in open_topics or now_s - record.asked_s < UNLOAD_INTERVAL_S_MIN
    }


def unloading_failure(
    open_topics: AbstractSet[str], attempts: Mapping[str, Attempts], now_s: float
) -> BkhealError | None:
    """Return the reason why no unloading can close these topics any more; None: one may, or there are no topics.

    After its last unloading, a topic counts only after a period, because its ledgers may have just been closed.
    """
    reasons: list[BkhealError] = []
    for topic in sorted(open_topics):
        if not unload_path(topic):
            continue
        record = attempts.get(topic)
        if record is None or not record.is_over:
            return None
        if record.error is not None:
            reasons.append(record.error)
        elif now_s - record.asked_s < UNLOAD_INTERVAL_S_MIN:
            return None
        else:
            reasons.append(
                UnloadIneffectiveError(f"topic {topic} was unloaded {UNLOADS_MAX} times, and its ledger is open")
            )
    return reasons[0] if reasons else None
