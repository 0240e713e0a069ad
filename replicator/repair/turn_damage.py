"""The damaged copies that one turn finds: which of them to report, to overwrite and to try first.

There are two kinds of evidence:

- A bookie *shows* damage when a round asks it for its entries: it cannot read some of them, or their bytes do not
  verify. It is not known yet whether another bookie has a good copy, and the next round asks again. So this is kept for
  one round only.
- A copy *reads* a damaged copy from a source, and a good one from another source. This is kept in ``KnownDamage``,
  which outlives the turn.

The invariant: a copy in place overwrites every entry with evidence of either kind, and the evidence stays until then. A
turn reports each damaged copy once. A bookie on which copies were stored again ``STORED_AGAIN_MAX`` times gets no
further ones.

Damaged copies are replaced together with the missing entries of their bookie, so a large number of them is no reason to
replace the bookie.

Source: R41 and R139, docs/failure-model.md.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from bookie.metadata.ledgers.ledgers import Versioned
from bookie.model.availability import EntryRuns
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.wire.port import Status
from replicator.copying.outcome import CopyOutcome
from replicator.copying.receiver import REPORTED_MAX
from replicator.knowledge.damage import LEDGER_COPIES_MAX, KnownDamage
from replicator.knowledge.evidence import BookieAnswer, CorruptCopy, UnreadableEntry
from replicator.knowledge.holdings import Shortfall
from replicator.knowledge.stored_again import STORED_AGAIN_MAX, RestoredCopyCounts
from replicator.plan.installable import CopiedStep
from replicator.plan.steps import CopyPosition, PositionKey, Step
from replicator.telemetry.events import EventSink

_NOTHING = EntryRuns(())


class TurnDamage:
    """The damaged copies of one ledger that a turn has found."""

    def __init__(self, known: KnownDamage, stored_again: RestoredCopyCounts, events: EventSink) -> None:
        """Start with what earlier turns of the process have found."""
        self._known = known
        self._stored_again = stored_again
        self._events = events
        self._shown = KnownDamage()
        """The damaged copies that bookies showed in this round, up to a limit."""
        self._unread: dict[BookieId, EntryRuns] = {}
        """For each bookie, all entries that it could not read in this round."""
        self._unverified: dict[BookieId, EntryRuns] = {}
        """For each bookie, all entries whose bytes did not verify in this round."""
        self._reported: set[tuple[BookieId, EntryId]] = set()
        """The damaged copies that were shown and reported, up to a limit."""
        self._tried: set[BookieId] = set()
        """The bookies that served a damaged entry after it was stored there again."""
        self._counted: set[BookieId] = set()
        """The bookies that showed damaged copies which were stored again."""

    def note_shown(self, ledger: Versioned, shortfall: Shortfall) -> list[BookieAnswer]:
        """Note, for one round, the copies that bookies could not read, or that did not verify; report new ones.

        If there are too many to note, at least the last one of each bookie is noted. Return an answer for each bookie
        that must get no further copies.
        """
        self._unread, self._unverified = dict(shortfall.unread), dict(shortfall.damaged)
        detail = f"copies were replaced there {STORED_AGAIN_MAX} times, and are damaged again"
        refused = [
            BookieAnswer(bookie, Status.IO_ERROR, detail)
            for bookie in self._unread.keys() | self._unverified.keys()
            if bookie not in self._counted and self._stored_again.is_at_bound(ledger.ledger_id, bookie)
        ]
        found = list(itertools.islice(shortfall.damaged_copies(), LEDGER_COPIES_MAX))
        known = self._reported | self._known.copies(ledger.ledger_id) if found else frozenset()
        self._report(ledger, [copy for copy in found if (copy.bookie, copy.entry_id) not in known])
        if len(self._reported) < LEDGER_COPIES_MAX:
            self._reported.update((copy.bookie, copy.entry_id) for copy in found)
        self._shown = KnownDamage()
        self._shown.note(ledger, found)
        return refused

    def note_read(self, ledger: Versioned, outcomes: Sequence[CopyOutcome]) -> list[BookieAnswer]:
        """Report the damaged copies that a copy of a fragment read; note those with a good copy for the next plan.

        Return an answer for each bookie with too many of them.
        """
        met = outcomes[0].corrupt
        known = self._known.copies(ledger.ledger_id) if met else frozenset()
        fresh = [copy for copy in met if (copy.bookie, copy.entry_id) not in known]
        self._report(ledger, fresh)
        without_good = {entry.entry_id for outcome in outcomes for entry in outcome.unreadable}
        without_good.update(copy.entry_id for copy in fresh if any(copy.entry_id in each.left_out for each in outcomes))
        too_many = self._known.note(ledger, [copy for copy in fresh if copy.entry_id not in without_good])
        return [BookieAnswer(bookie, Status.CORRUPT, "too many damaged copies") for bookie in too_many]

    def is_any_known(self, ledger_id: LedgerId) -> bool:
        """Whether a copy has read a damaged copy that is not replaced yet."""
        return bool(self._known.of(ledger_id))

    def entries(self, ledger: Versioned, key: PositionKey) -> set[EntryId]:
        """Return the entries of a position with damaged copies on its bookie."""
        ledger_id = ledger.ledger_id
        return {*self._known.of(ledger_id).get(key, ()), *self._shown.of(ledger_id).get(key, ())}

    def is_shown(self, ledger: Versioned, key: PositionKey, entry_id: EntryId) -> bool:
        """Whether the bookie of a position showed in this round that its copy of an entry is damaged."""
        return entry_id in self._shown.of(ledger.ledger_id).get(key, ())

    def unread_by(self, bookie: BookieId) -> EntryRuns:
        """Return all entries that a bookie could not read in this round."""
        return self._unread.get(bookie, _NOTHING)

    def to_try_first(self, ledger: Versioned, steps: Iterable[Step]) -> list[tuple[CopyPosition, EntryId]]:
        """Return, for each bookie with several damaged copies, the one to overwrite before the others (R139).

        So if the disk of a bookie fails, each attempt stores only this entry there. It is the last damaged one, because
        Apache's bookies read the last entry of a ledger to answer about any other: if it is damaged, all seem to be.
        """
        counts: Counter[BookieId] = Counter()
        last: dict[BookieId, tuple[CopyPosition, EntryId]] = {}
        for step in steps:
            if not isinstance(step, CopyPosition) or not step.is_in_place or step.target in self._tried:
                continue
            entries = self.entries(ledger, PositionKey.of(ledger.metadata, step))
            counts[step.target] += len(entries)
            for entry_id in entries:
                if step.target not in last or entry_id > last[step.target][1]:
                    last[step.target] = step, entry_id
        return [each for bookie, each in last.items() if counts[bookie] > 1]

    def note_tried(self, bookie: BookieId) -> None:
        """Note that a bookie served a damaged entry after it was stored there again."""
        self._tried.add(bookie)

    def with_own_evidence(self, step: CopyPosition, outcome: CopyOutcome) -> CopyOutcome:
        """Return the outcome with the damaged copies of the position's own bookie as evidence.

        So an entry that this bookie could not read does not count as lost because every other bookie denies it.
        """
        if not step.is_in_place or not outcome.unreadable:
            return outcome
        unread, unverified = self.unread_by(step.old), self._unverified.get(step.old, _NOTHING)

        def completed(entry: UnreadableEntry) -> UnreadableEntry:
            if entry.entry_id in unread:
                return replace(entry, answers=(*entry.answers, BookieAnswer(step.old, Status.IO_ERROR)))
            if entry.entry_id in unverified:
                return replace(entry, answers=(*entry.answers, BookieAnswer(step.old, Status.CORRUPT)))
            return entry

        return replace(outcome, unreadable=tuple(map(completed, outcome.unreadable)))

    def note_installed(self, ledger: Versioned, copy: CopiedStep) -> int:
        """Forget the damaged copies that an installed copy has replaced; return their number.

        Damage that was found after a copy in place began stays.
        """
        key = PositionKey.of(ledger.metadata, copy.step)
        is_in_place = copy.step.is_in_place
        damaged = self.entries(ledger, key)
        replaced = damaged.intersection(copy.overwritten) if is_in_place else damaged
        if is_in_place and key in self._shown.of(ledger.ledger_id) and copy.step.target not in self._counted:
            self._counted.add(copy.step.target)  # once per turn
            self._stored_again.note(ledger.ledger_id, copy.step.target)
        for known in (self._known, self._shown):
            known.replaced(ledger.ledger_id, key, replaced)
        return len(replaced)

    def _report(self, ledger: Versioned, copies: Sequence[CorruptCopy]) -> None:
        for corrupt in copies[:REPORTED_MAX]:
            self._events.copy_corrupt(ledger.ledger_id, corrupt)
