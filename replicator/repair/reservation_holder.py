"""The reservation of one ledger's repair: made before the first byte is copied, given back before the task goes (S16).

While it exists, no collector of bkheal deletes the new copies, and the write that names the targets checks that it
exists. It also records how far each copy is, so another worker can continue it (R44): once in ``PROGRESS_BYTES`` or
``PROGRESS_S``, so small ledgers cost nothing. A reservation with such a record stays when a turn ends early.

There is one at most per ledger, and it belongs to the holder of the ledger's lock, who replaces or removes what
a dead worker left. Removing that before a task is completed also stops a worker that lost the lock without noticing:
the write it may still have under way is refused. If there was none when the lock was taken, nothing is removed; the
completion then looks once more that there is none. The transaction that installs the last copies and completes the task
deletes the reservation itself.
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
"""Bytes copied since the last record for which the end of a turn makes another one. Less is copied again."""
PROGRESS_BYTES: Final = 64 << 20
PROGRESS_S: Final = 10.0
"""How much is copied, and how much time passes, between two records of the progress: what a fault can cost again."""


class _Fragment(NamedTuple):
    """A fragment on the disks of one target."""

    first_entry_id: EntryId
    target: BookieId
    incarnation: str

    @staticmethod
    def of(copy: Reservation) -> _Fragment:
        return _Fragment(copy.first_entry_id, copy.target, copy.incarnation)

    def copy_of(self, position: int) -> Reservation:
        return Reservation(self.first_entry_id, position, self.target, self.incarnation)


class ReservationHolder:
    """Used by one turn of one task."""

    def __init__(self, ports: RepairPorts, lease: Lease) -> None:
        self._ports = ports
        self._lease = lease
        self._ledger_id: LedgerId = lease.held.task.ledger_id
        self._is_clear = lease.beside is not None and lease.beside.reservation is None
        """Whether neither this turn nor an earlier one reserved anything for this ledger, as far as it is known."""
        self._is_read = lease.beside is None
        """Whether what was read under the lock has been used, or was not read."""
        self.current: LedgerReservations | None = None
        """What this turn has reserved, as far as it stands."""
        self._before: tuple[Reservation, ...] | None = None
        """What an earlier worker reserved; None if it is not known."""
        self._progress: dict[_Fragment, dict[int, EntryId]] = {}
        """How far each copy is: the exclusive end by position."""
        self._left_targets: dict[tuple[EntryId, int], BookieId] = {}
        """The targets reserved by an earlier worker, with copies or without."""
        self._noted_at_s = ports.clock.monotonic_s()
        self._bytes_since = 0
        self._is_noting = False

    @property
    def is_clear(self) -> bool:
        """Whether the ledger has no reservation, as far as it is known: not by this turn nor by an earlier one."""
        return self._is_clear

    async def begun(self) -> Mapping[tuple[EntryId, int], BookieId]:
        """The targets of copies reserved, or partly made in this turn, by first entry and position.

        The record of an earlier worker is read once, before the first reservation. An outdated answer costs effort.

        Raises:
            StoreUnavailableError: no answer.
        """
        if self._before is None and self.current is None:
            try:
                left = await self._left()
            except UnreadableReservationError:
                left, self._before = None, None
            else:
                self._before = () if left is None else left.reservations
            for each in () if left is None else left.reservations:
                self._left_targets[each.first_entry_id, each.position] = each.target
                if each.has_progress:
                    self._progress.setdefault(_Fragment.of(each), {}).setdefault(each.position, each.end_entry_id)
        copied = {(on.first_entry_id, position): on.target for on, ends in self._progress.items() for position in ends}
        return {**self._left_targets, **copied}

    def recorded(self, first_entry_id: EntryId, position: int) -> tuple[Reservation, EntryId] | None:
        """The copy of a position of which most is done, with its exclusive end; None without one. After ``begun``."""
        mine = [
            (on.copy_of(position), ends[position])
            for on, ends in self._progress.items()
            if on.first_entry_id == first_entry_id and position in ends
        ]
        return max(mine, key=lambda item: item[1], default=None)

    async def _left(self) -> LedgerReservations | None:
        if self._is_read or self._lease.beside is None:
            return await self._ports.reservations.read(self._ledger_id)
        self._is_read = True
        return self._ports.reservations.decode(self._ledger_id, self._lease.beside.reservation)

    def end_entry_id(self, ledger: Versioned, step: Step, incarnation: str) -> EntryId:
        """Exclusive end of the position's entries acknowledged by these disks; 0 if unknown."""
        return self._end(_reservation(ledger, step, incarnation)) or EntryId(0)

    def other_position(self, ledger: Versioned, step: Step, incarnation: str) -> tuple[int, EntryId] | None:
        """Another position of the fragment of which these disks acknowledged most, with its exclusive end.

        In a striped ledger, positions share entries. A bookie that was the target of one position may be the target of
        another one after an interruption.
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
        """Drop the record of copies which a target does not have."""
        self._progress = {on: ends for on, ends in self._progress.items() if on.target != target}
        self._left_targets = {key: each for key, each in self._left_targets.items() if each != target}

    async def note_progress(
        self, ledger: Versioned, step: CopyPosition, incarnation: str, end: EntryId, size_bytes: int
    ) -> None:
        """Record ``size_bytes`` more as acknowledged by the target, and every entry before ``end``.

        Writes the record if it is due. A failure to write it is harmless.
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
        """Reserve every step that changes the metadata, each with its target's incarnation; durable on return.

        Raises:
            LeaseLostError: the lock is not ours any more; what is reserved is another's.
            StoreUnavailableError, WriteOutcomeUnknownError: no answer.
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
        """Reserve if the ledger is locked and has no reservation; False if not.

        The transaction cannot check that the lock is ours. It needs no more: it replaces no reservation, so at worst
        the next holder of the lock finds this one and replaces it.
        """
        self._lease.ensure_session()
        checks = [self._ports.tasks.locks.check(self._ledger_id)]
        reservations = self._with_progress(wanted)
        try:
            self.current = await self._ports.reservations.reserve(
                self._ledger_id, self._token(), reservations, is_first=True, checks=checks
            )
        except ReservationRefusedError as error:
            _log.info("ledger is read again", extra={"ledger_id": self._ledger_id, "error": str(error)})
            return False
        return True

    def lost(self) -> None:
        """The reservation turned out not to stand any more."""
        self.current = None

    def note_deleted(self) -> None:
        """Record the deletion of the reservation by the transaction which completed the task."""
        self.current, self._is_clear = None, True

    async def release(self) -> None:
        """Prevent any further reservation for the ledger by this worker or by a former holder of the lock.

        Raises:
            LeaseLostError: the lock is not ours any more, and we have reserved nothing.
            StoreUnavailableError, WriteOutcomeUnknownError: no answer.
        """
        if self._is_clear:
            return
        await self._release(is_progress_kept=False)

    async def _release(self, *, is_progress_kept: bool) -> None:
        reserved = self.current or await self._left_behind()
        if is_progress_kept and reserved is not None and await self._is_kept(reserved):
            return
        if reserved is not None:
            await self._ports.reservations.release(reserved)
        self.current, self._is_clear = None, True

    async def release_quietly(self) -> None:
        """``release`` as well as it goes: what stays is replaced or removed by the next holder of the lock.

        A reservation that records progress stays, so that the copy is continued.
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
                _log.info("reservation stays for now", extra={"ledger_id": self._ledger_id, "error": str(error)})
            else:
                return

    async def _is_kept(self, reserved: LedgerReservations) -> bool:
        """Keep a reservation with progress, as far as it is known now: one request, as a release is."""
        wanted = self._with_progress(reserved.reservations) if reserved is self.current else reserved.reservations
        is_recorded = any(each.has_progress for each in reserved.reservations)
        if not any(each.has_progress for each in wanted) or not (is_recorded or self._bytes_since >= KEPT_BYTES_MIN):
            return False
        return wanted == reserved.reservations or await self._ports.reservations.note_progress(reserved, wanted)

    async def _left_behind(self) -> LedgerReservations | None:
        await self._lease.ensure_ours()
        try:
            return await self._ports.reservations.read(self._ledger_id)
        except UnreadableReservationError as error:
            _log.warning("damaged reservation is removed", extra={"ledger_id": self._ledger_id, "error": str(error)})
            return await self._ports.reservations.reserve(self._ledger_id, self._token(), ())

    def _token(self) -> str:
        return f"{self._ports.rng.getrandbits(_TOKEN_BITS):024x}"


def is_progress_due(size_bytes: int, seconds: float) -> bool:
    """Whether the progress is recorded again, so many bytes and seconds after the last time."""
    return size_bytes >= PROGRESS_BYTES or seconds >= PROGRESS_S


def _reservation(ledger: Versioned, step: Step, incarnation: str) -> Reservation:
    first = ledger.metadata.fragments[step.fragment_index].first_entry_id
    return Reservation(first, step.position, step.target, incarnation)


def _without_progress(reservation: Reservation) -> Reservation:
    return replace(reservation, end_entry_id=EntryId(0)) if reservation.end_entry_id else reservation


def _all_without_progress(reservations: Iterable[Reservation]) -> tuple[Reservation, ...]:
    return tuple(map(_without_progress, reservations))
