"""Marks before Spark has read the ledgers: the driver reads some ledgers of lost bookies itself, and marks them.

The invariant (R100, R143): such marks follow the rules of the pass over all ledgers. The ledgers are read from
ZooKeeper, and the registered bookies are listed after that (R2). The brake, the delays, the switch and the gate are
those of every run. The pass over all ledgers always follows. Only this pass withdraws marks, and only it counts as the
audit of a loss.

R rules are defined in docs/failure-model.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import TypeVar

from bookie.metadata.bookies.registration import Bookies
from bookie.metadata.ledgers.serde import UnreadableMetadataError, decode
from bookie.model.ids import BookieId, LedgerId
from spark_jobs.report.counts import DriverMarksCounts, ImageCounts
from spark_jobs.runs.context import RunContext
from spark_jobs.runs.marking.brake import held_because
from spark_jobs.runs.marking.fresh_verdict import FreshVerdict, fresh_verdict
from spark_jobs.runs.marking.held_back import HeldBookieFilter
from spark_jobs.runs.marking.lost_bookies import LostBookies
from spark_jobs.runs.marking.publish import Marking, publish
from spark_jobs.runs.marking.withdrawal import LedgerIdSet

Counts = TypeVar("Counts", ImageCounts, DriverMarksCounts)


@dataclass(frozen=True, slots=True)
class NewLosses:
    """The losses that no audit has handled yet."""

    due: AbstractSet[BookieId]
    critical: AbstractSet[BookieId]
    """Bookies that are due only for their critical ledgers."""

    @staticmethod
    def of(lost: LostBookies) -> NewLosses:
        """Return the losses among ``lost`` that no audit has handled yet."""
        return NewLosses(
            frozenset(bookie for bookie, down in lost.due.items() if not down.audited_ms),
            frozenset(bookie for bookie, down in lost.critical_due.items() if not down.critical_audited_ms),
        )

    def __bool__(self) -> bool:
        return bool(self.due or self.critical)

    def concern(self, verdict: FreshVerdict) -> bool:
        """Return whether one of these bookies is a reason to mark the ledger now."""
        ledger = verdict.ledger
        return not (self.due.isdisjoint(ledger.missing) and self.critical.isdisjoint(ledger.critical_missing))


@dataclass(slots=True)
class ReadLedgers:
    """Some ledgers, with their current metadata."""

    verdicts: list[FreshVerdict] = field(default_factory=list)
    members: set[BookieId] = field(default_factory=set)


class EarlyMarking:
    """The marks of one run before its pass over all ledgers. Belongs to the run's thread."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._cluster = context.cluster
        self.registered: AbstractSet[BookieId] = frozenset()
        """The registered bookies, listed after the last ledgers were read."""
        self.tasks_changed = 0
        self.marked = 0
        """Number of marked ledgers."""
        self._ids = LedgerIdSet()
        self.first_mark_ms = 0
        """Time of the first mark, epoch milliseconds; 0: there is none."""
        self.last_mark_ms = 0

    @property
    def ledgers(self) -> LedgerIdSet:
        """The marked ledgers. Use it only after the last mark."""
        return self._ids

    def read(self, ids: Sequence[LedgerId], before: Bookies) -> ReadLedgers:
        """Read ledgers, then the bookies. Deleted and unreadable ledgers are left to the pass over all ledgers."""
        readable = list(_readable(ids, self._cluster.ledger_data(ids)))
        self.registered = self._cluster.bookies().registered
        # A bookie missing only since the start of the run has no delay yet, so it counts as live, as in the full pass.
        live = before.registered | self.registered
        read = ReadLedgers()
        for ledger_id, data in readable:
            try:
                metadata = decode(data)
            except UnreadableMetadataError:
                continue
            read.members |= metadata.members()
            if (verdict := fresh_verdict(ledger_id, metadata, live)) is not None:
                read.verdicts.append(verdict)
        return read

    def decided(self) -> AbstractSet[LedgerId]:
        """Return the ledgers with an accepted loss, which are left to the pass over all ledgers."""
        return {decision.ledger_id for decision in self._cluster.accepted_losses()}

    def publish(
        self, verdicts: Iterable[FreshVerdict], lost: LostBookies, known: AbstractSet[BookieId], ledgers: int
    ) -> str:
        """Mark the due ledgers, worst first; return why nothing more can be marked, or an empty text.

        Args:
            verdicts: the verdicts on the ledgers read since the last call.
            lost: the lost bookies, with their marking rules.
            known: every bookie with a cookie, a registration, or a place in the metadata read so far, for the brake.
            ledgers: the number of ledgers read, for the brake.
        """
        context = self._context
        held = held_because(known, self.registered, ledgers, None, context.settings.missing_share_max)
        if held is not None:
            return held
        ordered = sorted(verdicts, key=lambda verdict: (verdict.severity, verdict.ledger.ledger_id))
        due = HeldBookieFilter(lost.held).of(verdict.ledger for verdict in ordered)
        published = publish([marking for marking, _ in due], self._cluster, gate=context.gate, note=self._note)
        self.tasks_changed += published.tasks_changed
        if published.ledgers:
            now_ms = context.clock.epoch_ms()
            self.marked += published.ledgers
            self.first_mark_ms, self.last_mark_ms = self.first_mark_ms or now_ms, now_ms
        return "" if published.outcome.is_all else f"marking was {published.outcome.value}"

    def _note(self, batch: Sequence[Marking]) -> None:
        self._ids.add(ledger_id for ledger_id, _ in batch)
        self._context.note_marks(batch)

    def counted(self, counts: Counts) -> Counts:
        """Return ``counts`` with the marks so far."""
        return replace(counts, marked=self.marked, first_mark_ms=self.first_mark_ms, last_mark_ms=self.last_mark_ms)


def _readable(ids: Sequence[LedgerId], found: Sequence[bytes | str | None]) -> Iterator[tuple[LedgerId, bytes]]:
    for ledger_id, data in zip(ids, found, strict=True):
        if isinstance(data, bytes):
            yield ledger_id, data
