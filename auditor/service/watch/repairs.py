"""The progress of repairs, read only from the store: backlog, ledgers in flight, rate, and remaining time.

One observation shows a state. A rate needs two observations: a ledger counts as done if its task existed at the earlier
observation and does not exist at the later one, no matter which worker completed it. The remaining time is known only
while ledgers are completed.

Data that only workers have is not shown: when a failed ledger is retried, and copies whose progress is not recorded.
The reservation of a ledger records the progress of a copy every 64 MiB or 10 seconds.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from auditor.service.watch.backlog import READ_LEDGERS, judge
from bookie.metadata.bookies.drains import Drains
from bookie.metadata.bookies.registration import Registrations
from bookie.metadata.ledgers.ledgers import LedgerStore, Unreadable
from bookie.metadata.tasks.boosts import Boosts
from bookie.metadata.tasks.locks import Task
from bookie.metadata.tasks.parked import ParkedTasks
from bookie.metadata.tasks.reservations import Reservation, Reservations, UnreadableReservationError
from bookie.metadata.tasks.underreplication import UnderReplication, UnreadableTask
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import LedgerMetadata
from bookie.model.severity import Severity
from bookie.runtime.clock import Clock

WINDOW_S: Final = 300.0
"""Time over which a rate is computed, so that single large ledgers do not dominate it."""
POLL_SHARE: Final = 0.2
"""Largest share of the time that is spent reading, so a large backlog is read less often."""
_READING_S: Final = 0.5
_READING_LEDGER_S: Final = 0.01
"""An observation reads for at most ``_READING_S``, and ``_READING_LEDGER_S`` for each marked ledger. For the rest of
its time, it waited for ZooKeeper, for instance during an election."""
IN_FLIGHT_MAX: Final = 200
"""Ledgers in flight whose reservation is read in one observation, because each needs a request."""
HEALTHY: Final = "healthy"
"""Used instead of a severity: every bookie of the ledger is registered, so a worker has to check their entries. Or the
ledger was deleted, and a worker has to delete the task."""
UNREADABLE: Final = "unreadable"
"""Used instead of a severity: the task or the metadata cannot be read."""


@dataclass(frozen=True, slots=True)
class CopyProgress:
    """One position being copied. Numbers are None if there is no record of the progress."""

    first_entry_id: int
    position: int
    target: BookieId
    entries_done: int | None
    entries_total: int | None
    bytes_done: int | None
    bytes_total: int | None


@dataclass(frozen=True, slots=True)
class LedgerInFlight:
    """A marked ledger whose lock is held."""

    ledger_id: LedgerId
    worker: str
    """The worker's name in the lock; empty if it cannot be read."""
    severity: str
    copies: tuple[CopyProgress, ...] = ()
    """The reserved copies; empty if there is no reservation, or if it is damaged."""


@dataclass(slots=True)
class SeverityObservation:
    """Marked ledgers of one severity."""

    ledgers: int = 0
    bytes_estimate: int = 0
    oldest_ms: int = 0
    """Time of the oldest mark; 0: unknown."""


@dataclass(frozen=True, slots=True)
class RepairObservation:
    """The state of the repairs at one observation."""

    observed_ms: int
    listed_s: float
    """The monotonic time at which the marks were read. The rest of an observation may wait for ZooKeeper."""
    is_enabled: bool
    severities: Mapping[str, SeverityObservation]
    """Marked ledgers by severity, named in lower case, worst first; also ``HEALTHY`` and ``UNREADABLE``."""
    marked: Mapping[LedgerId, int]
    """Every marked ledger, with the estimated bytes to copy."""
    in_flight: tuple[LedgerInFlight, ...]
    in_flight_count: int
    """The number of all, including those omitted from ``in_flight``."""
    parked: Mapping[str, int]
    """Parked ledgers by reason."""
    waiting: int
    """Marked ledgers that are neither in flight nor parked."""
    waiting_bytes: int
    """Bytes to copy for ledgers that are not parked."""
    oldest_ms: int
    """Time of the oldest mark of all; 0: unknown."""
    boosted: int


class RepairWatch:
    """Reads the state of the repairs of one cluster."""

    def __init__(
        self,
        tasks: UnderReplication,
        ledgers: LedgerStore,
        registrations: Registrations,
        parked: ParkedTasks,
        reservations: Reservations,
        drains: Drains,
        boosts: Boosts,
        clock: Clock,
    ) -> None:
        """Store the arguments."""
        self._tasks = tasks
        self._ledgers = ledgers
        self._registrations = registrations
        self._parked = parked
        self._reservations = reservations
        self._drains = drains
        self._boosts = boosts
        self._clock = clock

    async def observe(self) -> RepairObservation:
        """Observe once. The result is not a consistent snapshot: a ledger may be completed during the observation.

        Raises:
            StoreUnavailableError: no answer.
            NotAClusterError: the cluster was deleted.
        """
        now_ms = self._clock.epoch_ms()
        is_enabled = not await self._tasks.switches.is_disabled()
        boosted = {boost.ledger_id for boost in await self._boosts.active(now_ms)}
        owners = await self._tasks.locks.owners()
        parked = {park.ledger_id: park.reason.value for park in await self._parked.list()}
        draining = (await self._drains.draining()).bookies
        bookies = (await self._registrations.list()).with_draining(draining)
        tasks = await self._tasks.list_all()
        listed_s = self._clock.monotonic_s()
        severities: dict[str, SeverityObservation] = {}
        marked: dict[LedgerId, int] = {}
        held: list[tuple[LedgerId, str, LedgerMetadata | None]] = []
        for start in range(0, len(tasks), READ_LEDGERS):
            part = tasks[start : start + READ_LEDGERS]
            found = await self._ledgers.read_many_metadata([task.ledger_id for task in part])
            for task, ledger in zip(part, found, strict=True):
                name, size = _judged(task, ledger, bookies.registered, bookies.draining)
                marked[task.ledger_id] = size
                _add(severities.setdefault(name, SeverityObservation()), size, task)
                if task.ledger_id in owners and len(held) < IN_FLIGHT_MAX:
                    held.append((task.ledger_id, name, ledger if isinstance(ledger, LedgerMetadata) else None))
            await asyncio.sleep(0)
        in_flight = [await self._in_flight(*each, owners) for each in held]
        aside = marked.keys() & parked.keys() - owners.keys()
        return RepairObservation(
            observed_ms=now_ms,
            listed_s=listed_s,
            is_enabled=is_enabled,
            severities={name: severities[name] for name in _ORDER if name in severities},
            marked=marked,
            in_flight=tuple(in_flight),
            in_flight_count=len(marked.keys() & owners.keys()),
            parked=dict(Counter(parked[ledger_id] for ledger_id in sorted(aside))),
            waiting=len(marked.keys() - owners.keys() - aside),
            waiting_bytes=sum(size for ledger_id, size in marked.items() if ledger_id not in aside),
            oldest_ms=min((part.oldest_ms for part in severities.values() if part.oldest_ms), default=0),
            boosted=len(boosted & marked.keys()),
        )

    async def _in_flight(
        self, ledger_id: LedgerId, severity: str, ledger: LedgerMetadata | None, owners: Mapping[LedgerId, str]
    ) -> LedgerInFlight:
        try:
            reserved = await self._reservations.read(ledger_id)
        except UnreadableReservationError:
            reserved = None
        copies: Sequence[CopyProgress] = ()
        if reserved is not None and ledger is not None:
            copies = [copy_progress(ledger, reservation) for reservation in under_way(reserved.reservations)]
        return LedgerInFlight(ledger_id, owners[ledger_id], severity, tuple(copies))


_ORDER: Final = (*(severity.label for severity in Severity), HEALTHY, UNREADABLE)


def under_way(reservations: Iterable[Reservation]) -> list[Reservation]:
    """Return the copies of a repair, without records of entries that targets received for another position. Pure."""
    copies: dict[tuple[EntryId, BookieId], Reservation] = {}
    for each in reservations:
        copies.setdefault((each.first_entry_id, each.target), each)
    return list(copies.values())


def copy_progress(ledger: LedgerMetadata, reservation: Reservation) -> CopyProgress:
    """Return the progress of a reserved copy, as far as the reservation and the metadata show it. Pure."""
    first, position = reservation.first_entry_id, reservation.position
    starts = [fragment.first_entry_id for fragment in ledger.fragments]
    last = ledger.fragment_last_entry_id(starts.index(first)) if first in starts else None
    if last is not None and ledger.last_entry_id is not None:
        last = min(last, ledger.last_entry_id)
    done = ledger.stripe.count(position, first, reservation.end_entry_id - 1) if reservation.has_progress else None
    total = None if last is None else ledger.stripe.count(position, first, last)
    mean = None
    if ledger.length is not None and ledger.last_entry_id is not None and ledger.last_entry_id >= 0:
        mean = ledger.length / (ledger.last_entry_id + 1)
    return CopyProgress(first, position, reservation.target, done, total, _times(done, mean), _times(total, mean))


@dataclass(frozen=True, slots=True)
class Rate:
    """The repairs that were completed in a time. The rates are None until something was completed."""

    measured_s: float = 0.0
    """The time between the first and the last observation; 0: there was only one observation."""
    ledgers: int = 0
    bytes_estimate: int = 0
    eta_s: float | None = None
    """Estimated seconds until no repairable ledger waits; None: unknown."""

    @property
    def ledgers_per_s(self) -> float | None:
        """Completed ledgers per second; None: unknown."""
        return self.ledgers / self.measured_s if self.measured_s > 0 else None

    @property
    def bytes_per_s(self) -> float | None:
        """Copied bytes of completed ledgers per second, estimated; None: unknown."""
        return self.bytes_estimate / self.measured_s if self.measured_s > 0 else None


@dataclass(frozen=True, slots=True)
class _Step:
    until_s: float
    ledgers: int
    bytes_estimate: int


@dataclass(slots=True)
class RateMeter:
    """Computes the rate over the observations of the last minutes."""

    _steps: deque[_Step] = field(default_factory=deque)
    _last: RepairObservation | None = None

    def add(self, observation: RepairObservation) -> Rate:
        """Add an observation, and return the rate until then."""
        now_s = observation.listed_s
        before, self._last = self._last, observation
        gone = (
            [] if before is None else [size for each, size in before.marked.items() if each not in observation.marked]
        )
        self._steps.append(_Step(now_s, len(gone), sum(gone)))
        while len(self._steps) > 2 and self._steps[1].until_s <= now_s - WINDOW_S:
            self._steps.popleft()
        measured = list(self._steps)[1:]  # the first step ended when the measurement began
        ledgers, size = sum(step.ledgers for step in measured), sum(step.bytes_estimate for step in measured)
        rate = Rate(now_s - self._steps[0].until_s, ledgers, size)
        return Rate(rate.measured_s, ledgers, size, _eta_s(observation, rate))


def pause_s(observation: RepairObservation, took_s: float, least_s: float) -> float:
    """Return the seconds from the end of an observation that took ``took_s`` to the next one: ``least_s`` or more."""
    reading_s = min(took_s, _READING_S + _READING_LEDGER_S * len(observation.marked))
    return max(least_s, reading_s / POLL_SHARE)


def _eta_s(observation: RepairObservation, rate: Rate) -> float | None:
    """Return the longer of the times by ledgers and by bytes; it does not expect new marks or failures."""
    left = observation.waiting + observation.in_flight_count
    if not left:
        return 0.0
    if not observation.is_enabled or not rate.ledgers_per_s:
        return None
    by_bytes = observation.waiting_bytes / rate.bytes_per_s if rate.bytes_per_s else 0.0
    return max(left / rate.ledgers_per_s, by_bytes)


def _judged(
    task: Task | UnreadableTask,
    ledger: LedgerMetadata | Unreadable | None,
    live: frozenset[BookieId],
    draining: frozenset[BookieId],
) -> tuple[str, int]:
    if isinstance(task, UnreadableTask) or isinstance(ledger, Unreadable):
        return UNREADABLE, 0
    if ledger is None:  # deleted
        return HEALTHY, 0
    verdict = judge(ledger, live, draining)
    severity = verdict.severity
    if severity is None and not task.missing:  # a repair of the placement names no bookie
        severity = Severity.MISPLACED
    return HEALTHY if severity is None else severity.label, verdict.bytes_estimate


def _add(part: SeverityObservation, size: int, task: Task | UnreadableTask) -> None:
    part.ledgers += 1
    part.bytes_estimate += size
    if isinstance(task, Task) and task.ctime_ms > 0:
        part.oldest_ms = min(part.oldest_ms or task.ctime_ms, task.ctime_ms)


def _times(entries: int | None, mean: float | None) -> int | None:
    return None if entries is None or mean is None else round(entries * mean)
