"""Measures the time from losses of bookies to their marks, in a process that never leads and never writes.

Audits of bkheal record in ZooKeeper when a loss began and when they had covered it (``FirstSeenDown``). These records
give the time for such a loss. Apache's auditor records nothing. For its marks, a loss begins when an observation first
finds the bookie lost, and ends with the first mark of the bookie. ``judge``, a pure function, decides.

These cases are not measured, because a figure would be a guess:

- By marks: a loss that had begun before the first observation of the process, or in a time without observations. Its
  beginning is unknown, and another process may have counted it.
- A bookie whose ledgers are never marked, because it has none, or because it returns before that.
- Marks that may be older than the loss: those of a bookie that marks named before, unless their time shows that they
  are new.

Each loss is reported once, however many processes mark it. While an audit of bkheal is under way, or after it has
covered the critical ledgers of a loss, only its record ends the loss. Marks do not count then, because they may be only
a part of what the audit marks. A loss ends when an observation finds the bookie registered, when its cookie is deleted,
or when a record has a later beginning, which shows that the bookie was registered between two observations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Final

from auditor.api.control import Backlog
from bookie.metadata.bookies.first_seen_down import Down, FirstSeenDown
from bookie.metadata.port import MetadataStore
from bookie.metadata.runs.records import RunLane, Runs
from bookie.model.ids import BookieId
from bookie.model.run import RunKind
from bookie.runtime.clock import Clock

GAP_S_MAX: Final = 60.0
"""Longest time between two observations, four times the usual one. After a longer one, a bookie may have been
registered unseen."""
LOSSES_MAX: Final = 10_000
"""Losses that are kept: more than any cluster has bookies. Further losses are not measured."""


@dataclass(frozen=True, slots=True)
class LossMeasurement:
    """The measurement of one lost bookie. Times are epoch milliseconds."""

    first_observed_ms: int
    """The first observation that found it lost."""
    began_ms: int | None
    """When the loss began, for a measurement by marks; None: unknown."""
    registered_ms: int = 0
    """The last observation before the loss."""
    may_be_named: bool = True
    """Whether marks from before the loss may name the bookie."""
    older_record_ms: int = 0
    """The beginning in the record of an earlier loss that no leader has deleted; 0: there was none."""
    record_ms: int = 0
    """The beginning in the record of this loss; 0: there is no record yet."""
    is_reported: bool = False
    marked_ms: int = 0
    """The time of a mark that names it; 0: no mark was seen yet."""


@dataclass(frozen=True, slots=True)
class MarkedBookies:
    """The bookies that marks name, counted before the records of losses were read."""

    is_counted: bool
    """False: no count is complete yet."""
    named_ms: Mapping[str, int] = field(default_factory=dict)
    """As ``Backlog.named_ms``."""
    is_run_under_way: bool = False
    """Whether an audit of bkheal holds the lock of runs with marks. It records the bookies that it covered before it
    releases the lock, so this is read after the count and before the records."""


@dataclass(frozen=True, slots=True)
class ObservedLosses:
    """The losses at an observation, and the data that the next observation needs."""

    losses: Mapping[BookieId, LossMeasurement]
    records_ms: Mapping[BookieId, int]
    """The beginnings in all records."""
    older_records_ms: Mapping[BookieId, int]
    """The beginnings in records that were read before an observation at which the bookie was registered. A record that
    is read after the registrations may belong to a newer loss."""
    marks: MarkedBookies
    now_ms: int
    now_s: float
    detected_s: tuple[float, ...] = ()
    """The detection times that this observation completed, in seconds."""


def judge(
    before: ObservedLosses | None,
    lost: AbstractSet[BookieId],
    noted: Mapping[BookieId, Down],
    marks: MarkedBookies,
    now_ms: int,
    now_s: float,
) -> ObservedLosses:
    """Compare an observation with the one before. Pure.

    Args:
        before: the result of the observation before; None at the first observation of the process.
        lost: known bookies without a registration.
        noted: the records of losses, read after ``marks``.
        marks: the bookies that marks name.
        now_ms: epoch milliseconds.
        now_s: of the monotonic clock.
    """
    is_gap = before is None or now_s - before.now_s > GAP_S_MAX
    detected_s: list[float] = []
    losses: dict[BookieId, LossMeasurement] = {}
    known = {} if before is None else before.losses
    for bookie in sorted(lost, key=lambda each: (each not in known, each))[:LOSSES_MAX]:
        loss = known.get(bookie)
        if loss is None:
            loss = _begun(bookie, before, noted, now_ms, is_gap=is_gap)
        elif is_gap:
            loss = replace(loss, began_ms=None)
        loss, seconds = _continued(bookie, loss, noted.get(bookie), marks, now_ms)
        losses[bookie] = loss
        if seconds is not None:
            detected_s.append(seconds)
    records_ms = {bookie: down.since_ms for bookie, down in noted.items()}
    before_ms = {} if before is None else before.records_ms
    older_ms = {bookie: since_ms for bookie, since_ms in before_ms.items() if bookie not in lost}
    return ObservedLosses(losses, records_ms, older_ms, marks, now_ms, now_s, tuple(detected_s))


def _begun(
    bookie: BookieId,
    before: ObservedLosses | None,
    noted: Mapping[BookieId, Down],
    now_ms: int,
    *,
    is_gap: bool,
) -> LossMeasurement:
    """Return a loss at the first observation that finds it."""
    if before is None:  # the process before this one has reported audited losses
        down = noted.get(bookie)
        record_ms = 0 if down is None else down.since_ms
        return LossMeasurement(now_ms, None, record_ms=record_ms, is_reported=bool(down and down.audited_ms))
    return LossMeasurement(
        now_ms,
        None if is_gap else now_ms,
        registered_ms=before.now_ms,
        may_be_named=not before.marks.is_counted or bookie in before.marks.named_ms,
        older_record_ms=before.older_records_ms.get(bookie, 0),
    )


def _continued(
    bookie: BookieId, loss: LossMeasurement, down: Down | None, marks: MarkedBookies, now_ms: int
) -> tuple[LossMeasurement, float | None]:
    """Return the loss after this observation, and its detection time in seconds if the measurement is complete."""
    if down is not None and down.since_ms == loss.older_record_ms:
        down = None
    if down is not None and loss.record_ms and down.since_ms > loss.record_ms:  # it returned, and is lost again
        loss = LossMeasurement(now_ms, loss.began_ms and down.since_ms, registered_ms=down.since_ms)
    if down is not None:
        loss = replace(loss, record_ms=down.since_ms)
    loss = _marked(bookie, loss, marks, now_ms)
    if loss.is_reported:
        return loss, None
    if down is not None and down.audited_ms:
        return replace(loss, is_reported=True), (down.audited_ms - down.since_ms) / 1000
    is_ours = down is not None and (marks.is_run_under_way or bool(down.critical_audited_ms))
    if not loss.marked_ms or is_ours:
        return loss, None
    loss = replace(loss, is_reported=True)
    if loss.began_ms is None:  # perhaps the process before this one has reported it
        return loss, None
    return loss, max(0, loss.marked_ms - (loss.record_ms or loss.began_ms)) / 1000


def _marked(bookie: BookieId, loss: LossMeasurement, marks: MarkedBookies, now_ms: int) -> LossMeasurement:
    """Return the loss with the time of its mark, if marks show one."""
    newest_ms = marks.named_ms.get(bookie)
    if newest_ms is None:
        return replace(loss, may_be_named=loss.may_be_named and not marks.is_counted)
    if loss.marked_ms or (loss.may_be_named and newest_ms <= loss.registered_ms):
        return loss
    # The time of a mark is from another machine's clock, so it counts only if it agrees with the observations.
    is_plausible = loss.registered_ms < newest_ms < now_ms
    return replace(loss, marked_ms=newest_ms if is_plausible else now_ms)


class LossObserver:
    """Reads the input of ``judge`` at each observation of a watch, and reports the detection times."""

    def __init__(
        self,
        store: MetadataStore,
        ledgers_root: str,
        clock: Clock,
        backlog: Callable[[], Backlog],
        report: Callable[[float], None],
    ) -> None:
        """Store the arguments.

        Args:
            store: has the records of losses and the locks of runs.
            ledgers_root: of the cluster.
            clock: for the gaps between observations.
            backlog: the last complete count.
            report: called with each detection time, in seconds.
        """
        self._store = store
        self._root = ledgers_root
        self._down = FirstSeenDown(store, ledgers_root)
        self._runs = Runs(store, ledgers_root)
        self._clock = clock
        self._backlog = backlog
        self._report = report
        self._observed: ObservedLosses | None = None

    async def observe(self, lost: AbstractSet[BookieId], now_ms: int) -> Mapping[BookieId, Down]:
        """Compare with the observation before, report, and return the records of losses.

        Raises:
            StoreUnavailableError: no answer; the next observation continues.
        """
        backlog = self._backlog()
        await self._store.sync(self._root)  # because the marks were counted in another session
        holder = await self._runs.holder(RunLane(RunKind.BOOKIES)) if lost else None
        marks = MarkedBookies(bool(backlog.counted_ms), backlog.named_ms, holder is not None)
        noted = await self._down.read()
        self._observed = judge(self._observed, lost, noted, marks, now_ms, self._clock.monotonic_s())
        for seconds in self._observed.detected_s:
            self._report(seconds)
        return noted

    def known(self, noted: Mapping[BookieId, Down]) -> Mapping[BookieId, Down]:
        """Return the records, and the observation of each loss without a record; a mark counts as a complete audit."""
        losses = {} if self._observed is None else self._observed.losses
        seen = {
            bookie: Down(loss.first_observed_ms, loss.marked_ms)
            for bookie, loss in losses.items()
            if bookie not in noted or noted[bookie].since_ms == loss.older_record_ms
        }
        return {**noted, **seen}
