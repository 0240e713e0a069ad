"""Computes the losses if certain bookies failed now, from ledger metadata and the registered bookies. Pure.

The severities are those of an audit (``bookie.model.severity``), as if the bookies were not registered. A member for
which the ledger is marked does not count as a remaining copy, because it may lack its copy. But it may also have one,
for example after its return with the same disks, so its loss may remove the last copy. If there is no other copy, the
ledger therefore counts as worse without it, as in ``auditor.safety.stopping``.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final

from bookie.model.ids import BookieId, LedgerId
from bookie.model.metadata import LedgerMetadata
from bookie.model.ownership import owner_names, owner_of
from bookie.model.severity import Severity, bytes_to_copy, health_of

TOPICS_MAX: Final = 100_000
"""Largest number of topics that are counted separately, about 30 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerLoss:
    """The effect of the loss of the bookies on a ledger."""

    ledger_id: LedgerId
    before: Severity | None
    """The present severity; None: it has all its copies. Doubted copies on the bookies count if there is no other."""
    after: Severity
    copies_left: int
    """Remaining copies of the entry with the fewest copies."""
    bookies: tuple[BookieId, ...]
    """Those of the failing bookies that it names."""
    bytes_estimate: int
    """Bytes to copy because of them; only for a closed ledger."""

    @property
    def is_worse(self) -> bool:
        """Whether the severity would be worse than now."""
        return self.before is None or self.after < self.before


def loss_of(
    ledger_id: LedgerId,
    metadata: LedgerMetadata,
    live: AbstractSet[BookieId],
    going: AbstractSet[BookieId],
    doubted: AbstractSet[BookieId] = frozenset(),
) -> LedgerLoss | None:
    """Return the loss of a ledger; None if it names none of the failing bookies.

    Args:
        ledger_id: the ledger.
        metadata: its metadata.
        live: registered bookies, including the failing ones.
        going: failing bookies; those that are not live are lost already, so their loss makes no ledger worse.
        doubted: bookies that may lack their copies.
    """
    named = going & metadata.members()
    if not named:
        return None
    copies = live - doubted
    before = _severity(metadata, copies)
    if before is Severity.NO_LIVE_COPY:
        copies |= live & going
        before = _severity(metadata, copies)
    after = [health_of(metadata, index, live - doubted - going) for index in range(len(metadata.fragments))]
    going_copies = named & copies
    levels = [each.severity for each in after if each.severity is not None]
    return LedgerLoss(
        ledger_id=ledger_id,
        before=before,
        after=min(levels),
        copies_left=min(each.copies_min for each in after),
        bookies=tuple(sorted(named)),
        bytes_estimate=sum(
            round(bytes_to_copy(metadata, index, sum(each in going_copies for each in fragment.members), then.severity))
            for index, (fragment, then) in enumerate(zip(metadata.fragments, after, strict=True))
        ),
    )


def _severity(metadata: LedgerMetadata, copies: AbstractSet[BookieId]) -> Severity | None:
    found = [health_of(metadata, index, copies).severity for index in range(len(metadata.fragments))]
    return min((each for each in found if each is not None), default=None)


@dataclass(slots=True)
class WhatIfTotals:
    """The losses of many ledgers, totalled in bounded memory."""

    worst_max: int
    ledgers: Counter[Severity] = field(default_factory=Counter)
    """Ledgers whose severity would be worse, by that severity."""
    already: Counter[Severity] = field(default_factory=Counter)
    """Ledgers on these bookies with an unchanged severity."""
    bytes_estimate: Counter[Severity] = field(default_factory=Counter)
    topics: dict[str, tuple[Severity, int]] = field(default_factory=dict)
    """For each Pulsar topic with affected ledgers: the worst severity, and the number of these ledgers."""
    topics_left_out: int = 0
    """Ledgers of topics beyond ``TOPICS_MAX``."""
    unnamed: int = 0
    """Affected ledgers without a topic."""
    _worst: list[tuple[int, int, int, LedgerLoss]] = field(default_factory=list)

    def add(self, loss: LedgerLoss, metadata: LedgerMetadata) -> None:
        """Count a ledger."""
        if not loss.is_worse:
            self.already[loss.after] += 1
            return
        self.ledgers[loss.after] += 1
        self.bytes_estimate[loss.after] += loss.bytes_estimate
        topic = owner_names(owner_of(metadata.custom))[2] if metadata.custom else None
        if topic is None:
            self.unnamed += 1
        elif topic in self.topics or len(self.topics) < TOPICS_MAX:
            severity, ledgers = self.topics.get(topic, (loss.after, 0))
            self.topics[topic] = (min(severity, loss.after), ledgers + 1)
        else:
            self.topics_left_out += 1
        entry = (-loss.after, loss.bytes_estimate, -loss.ledger_id, loss)
        if len(self._worst) < self.worst_max:
            heapq.heappush(self._worst, entry)
        elif self._worst:
            heapq.heappushpop(self._worst, entry)

    @property
    def worst(self) -> Sequence[LedgerLoss]:
        """The kept losses, the worst first; those of equal severity by size, the largest first."""
        return [loss for *_, loss in sorted(self._worst, reverse=True)]
