"""Which topics of open ledgers a drain has a broker unload next (pure).

A broker that unloads a topic closes its ledgers, and producers connect again and continue with new ledgers. The
invariant: a topic is asked for at most once in ``AGAIN_S``, whatever the answer was, and a limited number of times in
all. A topic that a broker closes without effect, or does not close, thus costs its producers a bounded number of
interruptions. Nothing depends on an unloading: the drain itself continues without it (R75).
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import quote

from bookie.model.errors import BkhealError, ConflictError, OutcomeUnknownError, PermanentError, TransientError
from bookie.model.ownership import encoded

AGAIN_S: Final = 60.0
"""Between two requests for the same topic. An idle replicator moves closed ledgers within this time."""
FAILURES_MAX: Final = 5
"""Most consecutive temporary failures for a topic: a broker restarts within this many periods."""
UNLOADS_MAX: Final = 5
"""Most unloadings of a topic. Its next ledger is on the bookie only if the bookie is chosen again."""
AT_ONCE: Final = 4
"""Requests under way: a broker closes ledgers, and producers of these topics wait."""
ROUND_TOPICS: Final = 16
"""Most topics per look at the drain: a slow broker delays the next look by a bounded time."""
_PERSISTENT: Final = "persistent"


class UnloadedInVainError(PermanentError):
    """A topic was unloaded ``UNLOADS_MAX`` times, and still has an open ledger on the bookies."""


@dataclass(frozen=True, slots=True)
class Attempts:
    """What was asked for one topic."""

    asked_s: float
    """When the last request began, by the clock of the process."""
    unloads: int = 0
    failures: int = 0
    """Since the last success."""
    error: BkhealError | None = None
    """Of the last request."""

    @property
    def is_over(self) -> bool:
        """Whether the topic is not asked for again."""
        match self.error:
            case None:
                return self.unloads >= UNLOADS_MAX
            case TransientError() | OutcomeUnknownError() | ConflictError():
                return self.failures >= FAILURES_MAX
            case _:
                return True


def unload_path(topic: str) -> str:
    """Return the path of the request to unload ``topic``, a full name; empty if the admin API has none.

    Each part of the name is encoded, and none can lead to another request: names come from custom metadata, which any
    client of the bookies can write.
    """
    domain, separator, path = topic.partition("://")
    parts = path.split("/", 2)
    if domain != _PERSISTENT or not separator or len(parts) != 3:
        return ""
    tenant, namespace, local = parts
    if any(part in ("", ".", "..") for part in parts) or "/" in local:  # with a slash: version 1, another API
        return ""
    return f"/admin/v2/{domain}/{quote(tenant, safe='')}/{quote(namespace, safe='')}/{encoded(local)}/unload"


def due(open_topics: AbstractSet[str], attempts: Mapping[str, Attempts], now_s: float) -> tuple[str, ...]:
    """Return the topics to ask for now, at most ``ROUND_TOPICS``: those never asked for first, then the longest ago."""
    waiting = [
        (found.asked_s if found else float("-inf"), topic)
        for topic in open_topics
        if unload_path(topic)
        and ((found := attempts.get(topic)) is None or (not found.is_over and now_s - found.asked_s >= AGAIN_S))
    ]
    return tuple(topic for _, topic in sorted(waiting)[:ROUND_TOPICS])


def after(before: Attempts | None, asked_s: float, error: BkhealError | None) -> Attempts:
    """Return the record of a topic after a request with the result ``error``; None: it was unloaded."""
    record = replace(before, asked_s=asked_s, error=error) if before else Attempts(asked_s, error=error)
    if error is None:
        return replace(record, unloads=record.unloads + 1, failures=0)
    return replace(record, failures=record.failures + 1)


def kept(attempts: Mapping[str, Attempts], open_topics: AbstractSet[str], now_s: float) -> dict[str, Attempts]:
    """Return the current records: of open topics, and of topics requested within the period."""
    return {
        topic: record for topic, record in attempts.items() if topic in open_topics or now_s - record.asked_s < AGAIN_S
    }


def hopeless(open_topics: AbstractSet[str], attempts: Mapping[str, Attempts], now_s: float) -> BkhealError | None:
    """Return the reason why unloading closes none of these topics any more; None: it may, or there are none.

    A topic unloaded for the last time counts only after a period: its ledgers may just have been closed.
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
        elif now_s - record.asked_s < AGAIN_S:
            return None
        else:
            reasons.append(
                UnloadedInVainError(f"topic {topic} was unloaded {UNLOADS_MAX} times, and its ledger is open")
            )
    return reasons[0] if reasons else None
