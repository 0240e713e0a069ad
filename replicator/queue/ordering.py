"""The order of tasks: first those closest to data loss, then those that wait longest.

Tasks are compared by these properties, in this order:

1. Requests for better placement come after all other tasks, because their ledgers lack nothing.
2. Parked tasks that are retried only because time has passed come late, because an attempt seldom changes anything.
3. The rank: the tasks with the fewest copies left come first. For the same reason, ledgers that lack only entries
   without any copy are the last of them.
4. A boost (``bookie.metadata.tasks.boosts``) puts a task before the others of its rank.
5. Ledgers of Pulsar's system topics come before others (A18), because many topics depend on each of them.
6. The oldest mark comes first.
7. Otherwise the order is random, so workers with the same list rarely compete for the same lock.

A failure delays a task (``parking``) and does not change its rank: after the delay it comes before every task with more
copies left. But tasks that fail again and again, and large ones, may use only some of the places of a worker
(``QueueKind``), so they never stop the repair of all others.
"""

from __future__ import annotations

import enum
import heapq
import random
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from bookie.metadata.bookies.registration import Bookies
from bookie.metadata.ledgers.ledgers import Unreadable, Versioned
from bookie.metadata.nodes import in_steps
from bookie.model.ids import BookieId, LedgerId
from bookie.model.metadata import LedgerMetadata
from bookie.model.ownership import owner_of

AGE_STEP_MS: Final = 60_000
"""The precision of ages. Marks within the same minute count as equally old, because the marks of one audit have no
order."""
_FUTURE_MS_MAX: Final = 86_400_000
"""How far a mark may be in the future by this process's clock. It is long, because this clock may be wrong as well:
without this rule, the order does not depend on it."""
NOTHING_LOST_RANK: Final = 1 << 30
"""The rank of a deleted, unreadable or healthy ledger. Its task ends quickly, and a delay does no harm."""
NO_COPY_LEFT_RANK: Final = 1 << 31
"""The rank of a ledger that lacks only entries without any copy: nothing can be repaired until a bookie returns."""
MISPLACED: Final = 1 << 32
"""The rank of a healthy ledger with copies to move: after every unhealthy ledger."""

FAILING_MIN: Final = 2
"""The failures in a row with which a task counts as failing. A single one may be an incident of the store."""

SMALL_BYTES: Final = 1 << 20
"""The size of the largest small ledger, so that all small ledgers in flight fit into the memory for copies."""
SMALL_ENTRIES: Final = 1000
"""The most entries of a small ledger: one request reads them."""


class QueueKind(enum.Enum):
    """Tasks whose order is kept separately, because some of them may have to wait for a place while others start."""

    REGULAR = "regular"
    LARGE = "large"
    FAILING = "failing"
    FAILING_LARGE = "failing, large"


FAILING_KINDS: Final = (QueueKind.FAILING, QueueKind.FAILING_LARGE)
LARGE_KINDS: Final = (QueueKind.LARGE, QueueKind.FAILING_LARGE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A task with the properties that determine the order."""

    ledger_id: LedgerId
    rank: int
    """The rank. The smallest comes first; see the function ``rank``."""
    ctime_ms: int
    """The time of the mark. -1 (not stored) counts as the oldest."""
    is_recheck: bool = False
    """Whether the task is parked and is tried again although nothing has changed."""
    is_parked: bool = False
    is_boosted: bool = False
    """Whether an operator put it before the others of its rank (a boost)."""
    parked_attempts: int = 0
    is_large: bool = False
    """Whether ``is_large`` holds for it."""
    is_of_system_topic: bool = False
    """Whether ``is_of_system_topic`` holds for it."""
    failures: int = 0
    """The number of failures in a row."""

    @property
    def kind(self) -> QueueKind:
        """The kind of the task."""
        if self.failures < FAILING_MIN:
            return QueueKind.LARGE if self.is_large else QueueKind.REGULAR
        return QueueKind.FAILING_LARGE if self.is_large else QueueKind.FAILING


def rank(ledger: Versioned | Unreadable | None, named: Collection[BookieId], bookies: Bookies) -> int:
    """Return the smallest number of copies left of any repairable entry.

    A registered member counts as a copy, unless the task names it: then the bookie was missing, and may have returned
    without its copies. A draining bookie is also named, but has its copies. A bookie that a fragment names twice counts
    once.

    Args:
        ledger: its metadata; None if it was deleted.
        named: the missing bookies according to its task.
        bookies: the registered bookies, and the draining ones.

    Returns:
        The number of copies, 1 or more, or one of the ranks above.
    """
    if not isinstance(ledger, Versioned):
        return NOTHING_LOST_RANK
    live = bookies.registered.difference(set(named) - bookies.draining)
    counts = set(_copies_of_short_write_sets(ledger.metadata, live))
    return min(counts - {0}, default=NO_COPY_LEFT_RANK if counts else NOTHING_LOST_RANK)


def mark_time_ms(ctime_ms: int, now_ms: int) -> int:
    """Return the time of a mark for the order; -1, the oldest, if a wrong clock of the store put it into the future.

    Such a mark would be younger than all others until the clock has reached its time, and wait for all of them.
    """
    return ctime_ms if ctime_ms <= now_ms + _FUTURE_MS_MAX else -1


def is_large(ledger: Versioned | Unreadable | None) -> bool:
    """Return whether a repair may copy more than ``SMALL_BYTES`` or ``SMALL_ENTRIES``, according to the metadata.

    An unclosed ledger may have any size.
    """
    if not isinstance(ledger, Versioned):
        return False
    length, last = ledger.metadata.length, ledger.metadata.last_entry_id
    return length is None or last is None or length > SMALL_BYTES or last >= SMALL_ENTRIES


def is_of_system_topic(ledger: Versioned | Unreadable | None) -> bool:
    """Return whether the custom metadata of a ledger names a system topic of Pulsar."""
    if not isinstance(ledger, Versioned) or not ledger.metadata.custom:
        return False
    owner = owner_of(ledger.metadata.custom)
    return owner is not None and owner.topic is not None and owner.topic.role is not None


_Key = tuple[bool, bool, int, bool, bool, int, float, LedgerId]
_CANDIDATES_PER_STEP: Final = 5000
"""The candidates that are sorted between two turns of the event loop, which takes some milliseconds."""


class Order:
    """Candidates in the order of their repair: sorted in parts, and merged as they are taken."""

    def __init__(self) -> None:
        self._parts: list[list[tuple[_Key, Candidate]]] = []
        """The parts, each sorted in reverse: the next candidate of a part is its last element."""
        self._heads: dict[QueueKind, list[tuple[_Key, int]]] = {kind: [] for kind in QueueKind}
        """For each kind, a heap of the keys of each part's next candidate, each with the number of its part. The
        candidates of a part are of the same kind."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def first(self, passed_over: Collection[QueueKind] = ()) -> Candidate | None:
        """Return the next candidate that is not of the kinds ``passed_over``; None if there is none."""
        heads = self._next_heads(passed_over)
        return self._parts[heads[0][1]][-1][1] if heads else None

    def _next_heads(self, passed_over: Collection[QueueKind]) -> list[tuple[_Key, int]]:
        heaps = [heads for kind, heads in self._heads.items() if heads and kind not in passed_over]
        return min(heaps, key=lambda heads: heads[0], default=[])

    @classmethod
    async def of(cls, candidates: Sequence[Candidate], rng: random.Random) -> Order:
        """Sort the candidates; other tasks may run between parts."""
        order = cls()
        async for part in in_steps(candidates, _CANDIDATES_PER_STEP):
            ranked = _ranked(part, rng)
            ranked.reverse()
            by_kind: dict[QueueKind, list[tuple[_Key, Candidate]]] = {}
            for each in ranked:
                by_kind.setdefault(each[1].kind, []).append(each)
            for kind, same in by_kind.items():
                heapq.heappush(order._heads[kind], (same[-1][0], len(order._parts)))
                order._parts.append(same)
            order._count += len(ranked)
        return order

    def take(self, passed_over: Collection[QueueKind] = ()) -> Candidate:
        """Remove and return the next candidate that is not of the kinds ``passed_over``.

        Raises:
            IndexError: there is none.
        """
        heads = self._next_heads(passed_over)
        number = heads[0][1]
        part = self._parts[number]
        _, candidate = part.pop()
        if part:
            heapq.heapreplace(heads, (part[-1][0], number))
        else:
            heapq.heappop(heads)
        self._count -= 1
        return candidate

    def take_last(self, passed_over: Collection[QueueKind] = ()) -> Candidate:
        """Remove and return the last candidate of a part. Tests use this to repair in another order."""
        part = self._parts[self._next_heads(passed_over)[0][1]]
        if len(part) == 1:
            return self.take(passed_over)
        self._count -= 1
        return part.pop(0)[1]

    def clear(self) -> None:
        """Remove every candidate."""
        self._parts, self._heads, self._count = [], {kind: [] for kind in QueueKind}, 0


def _ranked(candidates: Iterable[Candidate], rng: random.Random) -> list[tuple[_Key, Candidate]]:
    ranked = [(_key(c, rng), c) for c in candidates]
    ranked.sort(key=lambda each: each[0])
    return ranked


def _key(c: Candidate, rng: random.Random) -> _Key:
    age = c.ctime_ms // AGE_STEP_MS
    is_later = not c.is_boosted, not c.is_of_system_topic
    return c.rank == MISPLACED, c.is_recheck, c.rank, *is_later, age, rng.random(), c.ledger_id


def _copies_of_short_write_sets(metadata: LedgerMetadata, live: Collection[BookieId]) -> Iterator[int]:
    """Yield the number of copies in each write set with fewer than it should have; equal fragments count once."""
    stripe = metadata.stripe
    seen: set[tuple[tuple[bool, ...], frozenset[int]]] = set()
    for index, fragment in enumerate(metadata.fragments):
        members = fragment.members
        is_live = tuple([member in live for member in members])
        if all(is_live):
            continue
        starts = stripe.starts(fragment.first_entry_id, metadata.fragment_last_entry_id(index))
        has_duplicates = len(set(members)) < len(members)
        if not has_duplicates:
            if (is_live, starts) in seen:
                continue
            seen.add((is_live, starts))
        for start in starts:
            write_set = stripe.write_set(start)
            copies = sum(is_live[position] for position in write_set)
            if copies < stripe.write_quorum:
                if has_duplicates:
                    copies = len({members[position] for position in write_set if is_live[position]})
                yield copies
