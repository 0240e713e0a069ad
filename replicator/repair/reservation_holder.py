"""The reservation of a ledger's repair: made before the first copy, removed before the task is deleted (S16).

While it exists, no collector of bkheal deletes the new copies, and the write of the installation checks that it exists.
It also contains the progress of each copy, so that another worker can continue it (R44). The progress is recorded every
``PROGRESS_BYTES`` or ``PROGRESS_S``, so not for small ledgers. A reservation with progress stays if a turn ends early.

There is at most one per ledger. It belongs to the holder of the ledger lock, which replaces or removes the reservation
of a dead worker. Its removal before the completion of a task also stops a worker that lost the lock without noticing:
its writes in flight are refused. If there was no reservation when the lock was taken, none is removed, and the
completion checks that there still is none. The transaction that installs the last copies and completes the task also
deletes the reservation.

R rules are defined in docs/failure-model.md.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from bookie.metadata.ledgers.ledgers import Versioned
from bookie.metadata.tasks.reservations import (
    LedgerReservations,
    Reservation,
    ReservationRefusedError,
    UnreadableReservationError,
)
from bookie.model.errors import BkhealError, OutcomeUnknownError, TransientError
from bookie.model.ids import BookieId, EntryId, LedgerId
from replicator.plan.steps import CopyPosition, Step
from replicator.ports import RepairPorts
from replicator.repair.lease import Lease, LeaseLostError

_log = logging.getLogger(__name__)

_TOKEN_BITS: Final = 96
_RELEASE_ATTEMPTS: Final = 2
KEPT_BYTES_MIN: Final = 8 << 20
"""The fewest bytes for which the end of a turn records the progress. Fewer bytes are copied again."""
PROGRESS_BYTES: Final = 64 << 20
PROGRESS_S: Final = 10.0
"""The bytes and the time between two records of the progress, and so the most that is copied again after a fault."""


class _Fragment(NamedTuple):
    """A fragment on the disks of one target."""

    first_entry_id: EntryId
    target: BookieId
    incarnation: str

    @staticmethod
    def of(copy: Reservation) -> _Fragment:
        return _Fragment(copy.first_entry_id, copy.target, copy.incarnation)

    def reservation_at(self, position: int) -> Reservation:
        return Reservation(self.first_entry_id, position, self.target, self.incarnation)


class ReservationHolder:
    """The reservation of one turn of one task."""

    def __init__(self, ports: RepairPorts, lease: Lease) -> None:
        self._ports = ports
        self._lease = lease
        self._ledger_id: LedgerId = lease.held.task.ledger_id
        self._is_clear = lease.other_nodes is not None and lease.other_nodes.reservation is None
        """Whether the ledger is known to have no reservation, of this turn or of an earlier one."""
        self._is_read = lease.other_nodes is None
        """Whether the reservation that was read with the lock was already used, or none was read."""
        self.current: LedgerReservations | None = None
        """The reservation of this turn, if it is known to exist."""
        self._before: tuple[Reservation, ...] | None = None
        """The reservations of an earlier worker; None if unknown."""
        self._progress: dict[_Fragment, dict[int, EntryId]] = {}
        """The progress of each copy: the exclusive end by position."""
        self._left_targets: dict[tuple[EntryId, int], BookieId] = {}
        """The targets that an earlier worker reserved, with or without copies."""
        self._noted_at_s = ports.clock.monotonic_s()
        self._bytes_since = 0
        self._is_noting = False

    @property
    def is_clear(self) -> bool:
        """Whether the ledger is known to have no reservation, of this turn or of an earlier one."""
        return self._is_clear

    async def begun(self) -> Mapping[tuple[EntryId, int], BookieId]:
        """Return the targets of reserved copies, and of partial copies of this turn, by first entry and position.

        The record of an earlier worker is read once, before the first reservation. If it is outdated, entries may be
        copied again.

        Raises:
            StoreUnavailableError: the store does not answer.
        """
        if self._before is None and self.current is None:
            try:
                left = await self._read_earlier()
            except UnreadableReservationError:
                left, self._before = None, None
            else:
                self._before = () if left is None else left.reservations
            if left is not None and self._is_of_deleted_ledger(left):
                left = None
            for each in () if left is None else left.reservations:
                self._left_targets[each.first_entry_id, each.position] = each.target
                if each.has_progress:
                    self._progress.setdefault(_Fragment.of(each), {}).setdefault(each.position, each.end_entry_id)
        copied = {(on.first_entry_id, position): on.target for on, ends in self._progress.items() for position in ends}
        return {**self._left_targets, **copied}

    def _is_of_deleted_ledger(self, left: LedgerReservations) -> bool:
        """Whether a reservation is older than the ledger, so that its copies are of a deleted one (R170)."""
        other_nodes = self._lease.other_nodes
        ledger = None if other_nodes is None else other_nodes.metadata
        return ledger is not None and left.czxid is not None and left.czxid < ledger.stat.czxid

    def recorded(self) -> Mapping[tuple[EntryId, int], tuple[Reservation, EntryId]]:
        """Return the most advanced copy of each position, with its exclusive end, by first entry and position.

        Call ``begun`` before.
        """
        found: dict[tuple[EntryId, int], tuple[Reservation, EntryId]] = {}
        for on, ends in self._progress.items():
            for position, end in ends.items():
                key = on.first_entry_id, position
                if key not in found or end > found[key][1]:
                    found[key] = on.reservation_at(position), end
        return found

    async def _read_earlier(self) -> LedgerReservations | None:
        """Return the reservation of an earlier worker: as read together with the lock, or by a request."""
        if self._is_read or self._lease.other_nodes is None:
            return await self._ports.reservations.read(self._ledger_id)
        self._is_read = True
        return self._ports.reservations.decode(self._ledger_id, self._lease.other_nodes.reservation)

    def end_entry_id(self, ledger: Versioned, step: Step, incarnation: str) -> EntryId:
        """Return the exclusive end of the position's entries that these disks acknowledged; 0 if unknown."""
        return self._end(_reservation(ledger, step, incarnation)) or EntryId(0)

    def other_position(self, ledger: Versioned, step: Step, incarnation: str) -> tuple[int, EntryId] | None:
        """Return the other position of the fragment that is most advanced on these disks, with its exclusive end.

        In a striped ledger, positions share entries. After an interruption, the target of one position may become the
        target of another one.
        """
        wanted = _reservation(ledger, step, incarnation)
        position = self._other_position(wanted)
        return None if position is None else (position, self._progress[_Fragment.of(wanted)][position])

    def _other_position(self, wanted: Reservation) -> int | None:
        ends = self._progress.get(_Fragment.of(wanted), {})
        return max(ends.keys() - {wanted.position}, key=ends.__getitem__, default=None)

    def _end(self, copy: Reservation) -> EntryId | None:
        return self._progress.get(_Fragment.of(copy), {}).get(copy.position)

    def forget_progress(self, target: BookieId) -> None:
        """Forget the progress of copies to a target that was found to lack them."""
        self._progress = {on: ends for on, ends in self._progress.items() if on.target != target}
        self._left_targets = {key: each for key, each in self._left_targets.items() if each != target}

    async def note_progress(
        self, ledger: Versioned, step: CopyPosition, incarnation: str, end: EntryId, size_bytes: int
    ) -> None:
        """Note that the target acknowledged ``size_bytes`` more, and now has every entry before ``end``.

        The progress is written to the store if that is due. A failure to write it does no harm.
        """
        key = _reservation(ledger, step, incarnation)
        self._bytes_since += size_bytes
        if end > max(key.first_entry_id, self._end(key) or 0):
            self._progress.setdefault(_Fragment.of(key), {})[key.position] = end
        now_s = self._ports.clock.monotonic_s()
        is_due = is_progress_due(self._bytes_since, now_s - self._noted_at_s)
        if self.current is None or self._is_noting or end > step.last or not is_due:
            return
        wanted = self._with_progress(self.current.reservations)
        if wanted == self.current.reservations:
            return
        self._noted_at_s, self._bytes_since, self._is_noting = now_s, 0, True
        try:
            reserved = self.current
            if await self._ports.reservations.note_progress(reserved, wanted) and self.current is reserved:
                self.current = replace(reserved, reservations=wanted)
        except (TransientError, OutcomeUnknownError) as error:
            _log.info("progress is not recorded", extra={"ledger_id": self._ledger_id, "error": str(error)})
        finally:
            self._is_noting = False

    def _with_progress(self, reservations: Iterable[Reservation]) -> tuple[Reservation, ...]:
        known = ((each, self._end(each)) for each in reservations)
        return tuple(_without_progress(each) if end is None else replace(each, end_entry_id=end) for each, end in known)

    async def reserve(self, ledger: Versioned, steps: Sequence[tuple[Step, str]]) -> None:
        """Reserve every step that changes the metadata, each with its target's incarnation. It is durable on return.

        Raises:
            LeaseLostError: the lock is no longer ours; any reservation belongs to another worker.
            StoreUnavailableError, WriteOutcomeUnknownError: the store does not answer.
        """
        wanted = tuple(
            _reservation(ledger, step, incarnation)
            for step, incarnation in steps
            if not (isinstance(step, CopyPosition) and step.is_in_place)
        )
        if not wanted:
            return
        others = ((each, self._other_position(each)) for each in wanted)
        wanted += tuple(replace(each, position=position) for each, position in others if position is not None)
        if self.current is not None and _all_without_progress(self.current.reservations) == wanted:
            return
        is_first, self._before = self._before == (), None
        self.current, self._is_clear = None, False
        if is_first and await self._reserve_first(wanted):
            return
        await self._lease.ensure_ours()
        self.current = await self._ports.reservations.reserve(
            self._ledger_id, self._token(), self._with_progress(wanted)
        )

    async def _reserve_first(self, wanted: tuple[Reservation, ...]) -> bool:
        """Reserve if the ledger is locked and has no reservation; otherwise return False.

        The transaction cannot check that the lock is ours. It need not: it replaces no reservation, so at worst the
        next holder of the lock finds this one and replaces it.
        """
        self._lease.ensure_session()
        checks = [self._ports.tasks.locks.check(self._ledger_id)]
        reservations = self._with_progress(wanted)
        try:
            self.current = await self._ports.reservations.reserve(
                self._ledger_id, self._token(), reservations, is_first=True, checks=checks
            )
        except ReservationRefusedError as error:
            _log.info(
                "reservation refused, the ledger is read again",
                extra={"ledger_id": self._ledger_id, "error": str(error)},
            )
            return False
        return True

    def note_lost(self) -> None:
        """Record that the reservation no longer exists."""
        self.current = None

    def note_deleted(self) -> None:
        """Record the deletion of the reservation by the transaction that completed the task."""
        self.current, self._is_clear = None, True

    async def release(self) -> None:
        """Remove any reservation for the ledger, of this worker or of a former holder of the lock.

        Raises:
            LeaseLostError: the lock is no longer ours, and this turn has no reservation.
            StoreUnavailableError, WriteOutcomeUnknownError: the store does not answer.
        """
        if self._is_clear:
            return
        await self._release(is_progress_kept=False)

    async def _release(self, *, is_progress_kept: bool) -> None:
        reserved = self.current or await self._existing()
        if is_progress_kept and reserved is not None and await self._try_keep_reservation(reserved):
            return
        if reserved is not None:
            await self._ports.reservations.release(reserved)
        self.current, self._is_clear = None, True

    async def release_best_effort(self) -> None:
        """Remove the reservation like ``release``, but keep one with progress, so that its copies can be continued.

        Best effort: the next holder of the lock replaces or removes a remaining reservation.
        """
        for _ in range(_RELEASE_ATTEMPTS):
            if self._lease.is_session_over:
                return
            try:
                if not self._is_clear:
                    await self._release(is_progress_kept=True)
            except LeaseLostError:
                return
            except BkhealError as error:
                _log.info(
                    "reservation could not be removed yet", extra={"ledger_id": self._ledger_id, "error": str(error)}
                )
            else:
                return

    async def _try_keep_reservation(self, reserved: LedgerReservations) -> bool:
        """Keep a reservation with progress and record the latest progress in one request; return whether it is kept."""
        wanted = self._with_progress(reserved.reservations) if reserved is self.current else reserved.reservations
        is_recorded = any(each.has_progress for each in reserved.reservations)
        if not any(each.has_progress for each in wanted) or not (is_recorded or self._bytes_since >= KEPT_BYTES_MIN):
            return False
        return wanted == reserved.reservations or await self._ports.reservations.note_progress(reserved, wanted)

    async def _existing(self) -> LedgerReservations | None:
        """Return the reservation in the store, under a lock that is still ours; a damaged one is replaced first."""
        await self._lease.ensure_ours()
        try:
            return await self._ports.reservations.read(self._ledger_id)
        except UnreadableReservationError as error:
            _log.warning("damaged reservation is removed", extra={"ledger_id": self._ledger_id, "error": str(error)})
            return await self._ports.reservations.reserve(self._ledger_id, self._token(), ())

    def _token(self) -> str:
        return f"{self._ports.rng.getrandbits(_TOKEN_BITS):024x}"


def is_progress_due(size_bytes: int, seconds: float) -> bool:
    """Whether the progress must be recorded again after this many bytes and seconds."""
    return size_bytes >= PROGRESS_BYTES or seconds >= PROGRESS_S


def _reservation(ledger: Versioned, step: Step, incarnation: str) -> Reservation:
    first = ledger.metadata.fragments[step.fragment_index].first_entry_id
    return Reservation(first, step.position, step.target, incarnation)


def _without_progress(reservation: Reservation) -> Reservation:
    return replace(reservation, end_entry_id=EntryId(0)) if reservation.end_entry_id else reservation


def _all_without_progress(reservations: Iterable[Reservation]) -> tuple[Reservation, ...]:
    return tuple(map(_without_progress, reservations))
