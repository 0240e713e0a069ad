"""One target of a copy: the entries it needs, the acknowledged ones, and why its copy ended.

The invariant: the ``end`` that is reported as progress is never beyond an unacknowledged entry of the position,
whatever happens to the other targets, except for entries that are left out because their loss was accepted (R148). An
entry is read once and sent to all its receivers. Receivers end independently.

R rules are defined in docs/failure-model.md.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Final

from bookie.model.availability import EntryRuns, RunGroup
from bookie.model.ids import BookieId, EntryId
from replicator.copying.target import Target
from replicator.knowledge.evidence import BookieAnswer, UnreadableEntry
from replicator.plan.steps import CopyPosition

REPORTED_MAX: Final = 100
"""The most unreadable entries that are kept with their answers; further ones are only counted."""
AHEAD_BYTES_MAX: Final = 64 << 20
"""The most bytes copied after the first unacknowledged entry: the amount that ``repair.reservation_holder`` lets pass
between two records of the progress."""

NOTHING_HELD: Final = EntryRuns(())

NoteProgress = Callable[[EntryId, int], Awaitable[None]]
"""Called with (end, bytes): the target has every entry of the position before ``end``, and has acknowledged ``bytes``
since the last call."""


async def note_nothing(end: EntryId, size_bytes: int) -> None:
    """Do nothing: a ``NoteProgress`` for callers that do not record the progress."""
    return


@dataclass(frozen=True, slots=True)
class PositionCopy:
    """A position to copy, and the known state of its target."""

    step: CopyPosition
    held: EntryRuns = NOTHING_HELD
    """The entries that the target already has."""
    incarnation: str = ""
    note_progress: NoteProgress = note_nothing
    may_leave_out: EntryRuns = NOTHING_HELD
    """Entries whose loss an operator accepted. They are copied if any source has them (R148)."""
    recorded_lost: EntryRuns = NOTHING_HELD
    """The entries that a record names as lost, whether or not they may be left out. Equal for positions of a
    fragment."""


class Receiver:
    """The state of one position's copy, shared by the lanes of the copy."""

    def __init__(self, copy: PositionCopy, target: Target) -> None:
        """Prepare a receiver without acknowledged entries."""
        self.step = copy.step
        self.may_leave_out = copy.may_leave_out
        self._left_out: list[EntryRuns] = []
        """The entries that were left out, for each chunk."""
        self.bookie: BookieId = copy.step.target
        self.target = target
        self.unreadable: list[UnreadableEntry] = []
        self.unreadable_count = 0
        self.failure: BookieAnswer | None = None
        self._note_progress = copy.note_progress
        self.entry_ids = entries_without(copy.step, copy.held)
        """The entries to copy, ascending. An iterator: each entry is taken once."""
        self._taken_end = EntryId(copy.step.first)
        """The end (exclusive) of the chunks that lanes have taken."""
        self._waiting: dict[int, EntryId] = {}
        """The first unacknowledged entry of each chunk in flight, by chunk number."""
        self._bytes_at_take: dict[int, int] = {}
        """The bytes acknowledged before each of these chunks was taken."""
        self._noted_bytes = 0
        self._holders = [frozenset(copy.step.holders(start)) for start in range(len(copy.step.sources))]

    @property
    def is_active(self) -> bool:
        """Whether entries are still sent to this receiver."""
        return self.failure is None and not self.unreadable_count

    @property
    def is_far_ahead(self) -> bool:
        """Whether so much was acknowledged after the first chunk in flight that lanes must wait for it.

        Progress is recorded up to the first unacknowledged entry, so after an interruption all later entries are copied
        again.
        """
        first = next(iter(self._waiting), None)
        ahead_bytes = 0 if first is None else self.target.bytes - self._bytes_at_take[first]
        return self.is_active and ahead_bytes >= AHEAD_BYTES_MAX

    def take(self, chunk_number: int, chunk: Needs) -> None:
        """Record that a lane took a chunk with entries for this receiver. Chunks are taken in order."""
        self._bytes_at_take[chunk_number] = self.target.bytes
        self._waiting[chunk_number] = next(entry_id for entry_id, who in chunk.items() if self in who)
        self._taken_end = EntryId(next(entry_id for entry_id in reversed(chunk) if self in chunk[entry_id]) + 1)

    async def settle(self, chunk_number: int, first_waiting: EntryId | None) -> None:
        """Record that the entries of a chunk before ``first_waiting`` (None: all its entries) are acknowledged.

        Raises:
            BkhealError: the progress could not be recorded.
        """
        if first_waiting is None:
            self._waiting.pop(chunk_number, None)
            self._bytes_at_take.pop(chunk_number, None)
        else:
            self._waiting[chunk_number] = first_waiting
        end = EntryId(min((*self._waiting.values(), self._taken_end)))
        size_bytes, self._noted_bytes = self.target.bytes - self._noted_bytes, self.target.bytes
        await self._note_progress(end, size_bytes)

    def leave_out(self, entry_ids: Iterable[EntryId]) -> None:
        """Record entries of one chunk, ascending, that no source has and that the copy leaves out."""
        if runs := EntryRuns.of(entry_ids):
            self._left_out.append(runs)

    @property
    def left_out(self) -> EntryRuns:
        """The entries that the copy left out."""
        return EntryRuns.of_parts(self._left_out)

    def end_unreadable(self, unreadable: Sequence[UnreadableEntry]) -> None:
        """End the receiver because these entries cannot be read, and keep the answers of their holders as evidence."""
        self.unreadable_count += len(unreadable)
        for entry in unreadable[: max(0, REPORTED_MAX - len(self.unreadable))]:
            holders = self._holders[entry.entry_id % len(self._holders)]
            answers = tuple(answer for answer in entry.answers if answer.bookie in holders)
            self.unreadable.append(UnreadableEntry(entry.entry_id, answers))


Needs = dict[EntryId, tuple[Receiver, ...]]
"""Entries in ascending order, each with its receivers."""


def merged_needs(receivers: Sequence[Receiver]) -> Iterator[tuple[EntryId, tuple[Receiver, ...]]]:
    """Yield each entry that some receiver needs, once, in ascending order, with its receivers.

    If there are several receivers, an inactive one gets no further entries. A single receiver is not checked, because
    the copy ends with it.
    """
    if len(receivers) == 1:
        yield from zip(receivers[0].entry_ids, itertools.repeat((receivers[0],)))
        return
    numbered = (zip(_while_active(each), itertools.repeat(number)) for number, each in enumerate(receivers))
    for entry_id, same in itertools.groupby(heapq.merge(*numbered), key=itemgetter(0)):
        yield entry_id, tuple(receivers[number] for _, number in same)


def _while_active(receiver: Receiver) -> Iterator[EntryId]:
    return itertools.takewhile(lambda _: receiver.is_active, receiver.entry_ids)


def active_needs(needs: Needs) -> Needs:
    """Return ``needs`` without ended receivers, and without entries for these alone."""
    if all(each.is_active for each in receivers_of(needs)):
        return needs
    active = ((entry_id, tuple(each for each in who if each.is_active)) for entry_id, who in needs.items())
    return {entry_id: who for entry_id, who in active if who}


def receivers_of(needs: Needs) -> list[Receiver]:
    """Return the receivers of these entries, in the order of their bookies."""
    return sorted({each for who in set(needs.values()) for each in who}, key=lambda each: each.bookie)


def entries_without(step: CopyPosition, held: EntryRuns) -> Iterator[EntryId]:
    """Yield the entries of ``step`` except ``held``.

    The time for held entries depends on their groups of runs. It depends neither on their number, which may be 10^8,
    nor on the number of runs, of which a striped ledger has one for every few entries.
    """
    first = step.first
    for group in held.groups_within(step.first, step.last):
        runs = group.runs() if _has_lacking_gap(step, group) else [(group.first, group.last)]
        for run_first, run_last in runs:
            yield from step.stripe.entries(step.position, first, run_first - 1)
            first = EntryId(run_last + 1)
    yield from step.stripe.entries(step.position, first, step.last)


def _has_lacking_gap(step: CopyPosition, group: RunGroup) -> bool:
    """Whether the position has an entry between two runs of ``group``. The gaps repeat with the stripes."""
    stripe, gap = step.stripe, group.period - group.size
    cycle = stripe.ensemble_size // math.gcd(stripe.ensemble_size, group.period)
    ends = (group.first + group.size + number * group.period for number in range(min(cycle, group.run_count - 1)))
    return any(stripe.count(step.position, end, end + gap - 1) for end in ends)
