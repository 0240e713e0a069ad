"""The unfinished entries of a writer: pure bookkeeping, no I/O.

Rules that are enforced here (docs/formats.md#writing, #ensemble-change, docs/failure-model.md#recovery-rules, I1):

- entries are acknowledged in order, each after ``Qa`` members of its write set have it;
- an ack counts only on the lane that sent the entry, so an old ack of a bookie that was replaced never counts (S18);
- nothing is acknowledged during an ensemble change: the copy may be on a bookie that the metadata will not name;
- an ensemble change starts at last add confirmed + 1 and voids the replaced positions' acks of every later entry.

A *patient* writer continues with its remaining members while every pending entry can still reach ``Qa`` of them. A
writer is patient if delayed ensemble change was requested, or if no replacement is left. A bookie that is given up then
stays in the metadata, and is *short* if it lacks a confirmed entry.

An entry is *confirmed* after it was acknowledged to the application, and *settled* after each position of its write set
has it or was given up. Confirmed entries are kept until they are settled, so that slow members get them, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Generic, TypeVar

from bookie.model.ids import BookieId, EntryId
from bookie.model.metadata import InvalidMetadataError
from bookie.model.schedule import Stripe
from bookie.wire.port import BATCH_BYTES_MAX, BATCH_ENTRIES_MAX

WaiterT = TypeVar("WaiterT")


class PendingAdd(Generic[WaiterT]):
    """One unfinished entry. Bit ``i`` of a mask stands for ensemble position ``i``."""

    __slots__ = ("acked", "entry_id", "is_confirmed", "length", "packet", "unsettled", "waiter")

    def __init__(self, entry_id: EntryId, packet: bytes, length: int, unsettled: int, waiter: WaiterT) -> None:
        self.entry_id = entry_id
        self.packet = packet
        self.length = length
        self.acked = 0
        self.unsettled = unsettled
        self.is_confirmed = False
        self.waiter = waiter


class Lane(Generic[WaiterT]):
    """The queue for one bookie at one ensemble position; a replacement gets a lane of its own."""

    __slots__ = ("bookie", "in_flight", "incarnation", "is_failed", "is_new", "position", "queue")

    def __init__(self, position: int, bookie: BookieId, incarnation: str) -> None:
        self.position = position
        self.bookie = bookie
        self.incarnation = incarnation
        self.queue: deque[PendingAdd[WaiterT]] = deque()
        self.in_flight: list[list[PendingAdd[WaiterT]]] = []
        self.is_failed = False
        self.is_new = False
        """Whether the bookie has replaced another one, and has not acknowledged any entry yet."""

    def take_batch(self, entries_max: int = BATCH_ENTRIES_MAX) -> list[PendingAdd[WaiterT]]:
        """Move the next entries from the queue to those in flight, within the bounds of a batch; empty if none wait."""
        batch: list[PendingAdd[WaiterT]] = []
        size = 0
        queue = self.queue
        while queue and len(batch) < entries_max and size < BATCH_BYTES_MAX:
            pending = queue.popleft()
            batch.append(pending)
            size += len(pending.packet)
        if batch:
            self.in_flight.append(batch)
        return batch

    def outstanding(self) -> Iterator[PendingAdd[WaiterT]]:
        """Yield every entry that the bookie has not acknowledged."""
        for batch in self.in_flight:
            yield from batch
        yield from self.queue


class WriterState(Generic[WaiterT]):
    """The state of a writer as pure data: entries, acknowledgements and lanes."""

    def __init__(
        self,
        members: Sequence[BookieId],
        write_quorum: int,
        ack_quorum: int,
        *,
        incarnations: Mapping[BookieId, str] | None = None,
        is_patient: bool = False,
    ) -> None:
        """Start without entries.

        Args:
            members: the members of the last fragment, by position.
            write_quorum: ``Qw``.
            ack_quorum: ``Qa``.
            incarnations: the disks for which each member's adds are meant; any disks for a member without a value.
            is_patient: see the module docstring; may be changed at any time.
        """
        pins = incarnations or {}
        self._stripe = Stripe(len(members), write_quorum)
        self._ack_quorum = ack_quorum
        self.lanes: list[Lane[WaiterT]] = [
            Lane(position, bookie, pins.get(bookie, "")) for position, bookie in enumerate(members)
        ]
        self.is_patient = is_patient
        self._failed_mask = 0
        self._is_change_due = False
        self._unconfirmed: deque[PendingAdd[WaiterT]] = deque()
        self._masks = [self._write_set_mask(start) for start in range(len(members))]
        self.is_changing = False
        self.last_add_confirmed = EntryId(-1)
        self.confirmed_length = 0
        self.next_entry_id = EntryId(0)
        self.next_length = 0
        self.unsettled_entries = 0
        self.unsettled_bytes = 0
        self.incomplete: set[BookieId] = set()
        """Bookies that were given up before they had a confirmed entry placed on them: listed for repair."""

    def admit(self, packet: bytes, payload_bytes: int, waiter: WaiterT) -> PendingAdd[WaiterT]:
        """Accept the next entry, packed with ``next_entry_id``, and queue it to its write set."""
        entry_id = self.next_entry_id
        mask = self._masks[entry_id % len(self._masks)]
        self.next_length += payload_bytes
        pending = PendingAdd(entry_id, packet, self.next_length, mask, waiter)
        self.next_entry_id = EntryId(entry_id + 1)
        self._unconfirmed.append(pending)
        self.unsettled_entries += 1
        self.unsettled_bytes += len(packet)
        for lane in self.lanes:
            if mask >> lane.position & 1:
                lane.queue.append(pending)
        return pending

    def acknowledge(self, lane: Lane[WaiterT], batch: list[PendingAdd[WaiterT]]) -> list[PendingAdd[WaiterT]]:
        """Record ``batch`` as durable on the lane's bookie; return the entries that this confirms, in order."""
        if not self.is_current(lane):
            return []
        lane.in_flight.remove(batch)
        lane.is_new = False
        bit = 1 << lane.position
        for pending in batch:
            pending.acked |= bit
            if pending.unsettled & bit:
                self._settle(pending, bit)
        return self.confirm()

    def confirm(self) -> list[PendingAdd[WaiterT]]:
        """Confirm every entry that can be confirmed, in order; none while the ensemble is changing."""
        confirmed: list[PendingAdd[WaiterT]] = []
        if self.is_changing:
            return confirmed
        queue = self._unconfirmed
        while queue and queue[0].acked.bit_count() >= self._ack_quorum:
            pending = queue.popleft()
            pending.is_confirmed = True
            if pending.unsettled & self._failed_mask:
                self._settle_failed_lanes(pending)
            self.last_add_confirmed = pending.entry_id
            self.confirmed_length = pending.length
            confirmed.append(pending)
        return confirmed

    def fail(self, lane: Lane[WaiterT], *, is_wiped: bool = False, is_change_due: bool = False) -> bool:
        """Give up the lane's bookie for this position; return False if the lane was already given up.

        Confirmed entries that the bookie lacks are settled without it, and it counts as short. The others wait for a
        replacement.

        Args:
            lane: the lane that failed.
            is_wiped: whether its acknowledged entries are lost as well, so that its acks of unconfirmed ones are void.
            is_change_due: whether to replace it even if this writer is patient.
        """
        if not self.is_current(lane):
            return False
        bit = 1 << lane.position
        lane.is_failed = True
        self._failed_mask |= bit
        self._is_change_due |= is_change_due
        for pending in lane.outstanding():
            if pending.is_confirmed:
                self._settle_failed_lanes(pending)
        lane.queue = deque(maxlen=0)  # later entries are not sent, so they must not pile up
        lane.in_flight.clear()
        if is_wiped:
            for pending in self._unconfirmed:
                if pending.acked & bit:
                    self._mark_unsettled(pending, bit)
        return True

    @property
    def has_failed_lanes(self) -> bool:
        """Whether some position was given up and not replaced yet."""
        return bool(self._failed_mask)

    def failed_positions(self) -> tuple[int, ...]:
        """Positions whose bookie was given up and not replaced yet."""
        return tuple(lane.position for lane in self.lanes if lane.is_failed)

    @property
    def is_quorum_reachable(self) -> bool:
        """Whether each write set still has ``Qa`` members that were not given up."""
        alive = ~self._failed_mask
        return all((mask & alive).bit_count() >= self._ack_quorum for mask in self._masks)

    @property
    def needs_change(self) -> bool:
        """Whether an unconfirmed entry waits for a failed position; if patient, whether it can never do without it."""
        failed = self._failed_mask
        if not failed:
            return False
        dispensable = 0
        if self.is_patient and not self._is_change_due:
            if self.is_quorum_reachable:
                return False
            dispensable = self._stripe.write_quorum - self._ack_quorum
        return any((pending.unsettled & failed).bit_count() > dispensable for pending in self._unconfirmed)

    def continue_incomplete(self) -> None:
        """Continue without the positions given up so far, as a patient writer."""
        self.is_patient = True
        self._is_change_due = False

    def replace(self, members: Sequence[BookieId], incarnations: Mapping[BookieId, str] | None = None) -> None:
        """Use a new ensemble whose metadata is stored, starting at ``last_add_confirmed + 1``.

        Each changed position gets a new lane with every unconfirmed entry of its write set.
        """
        if len(members) != len(self.lanes):
            raise InvalidMetadataError(f"an ensemble of {len(members)} cannot replace one of {len(self.lanes)}")
        for position, bookie in enumerate(members):
            if self.lanes[position].bookie != bookie:
                # A kept member that failed during the change stays failed: the next round of the change handles it.
                lane: Lane[WaiterT] = Lane(position, bookie, (incarnations or {}).get(bookie, ""))
                lane.is_new = True
                self._replace_lane(lane)

    def readmit(self, position: int) -> None:
        """Use the bookie at a failed position again, from ``last_add_confirmed + 1`` on.

        Answers to earlier requests no longer count.
        """
        old = self.lanes[position]
        self._replace_lane(Lane(position, old.bookie, old.incarnation))

    def abandon(self) -> list[PendingAdd[WaiterT]]:
        """Drop all unfinished entries and return the unconfirmed ones, in order. No lane is current after this."""
        dropped = list(self._unconfirmed)
        self._unconfirmed.clear()
        for lane in self.lanes:
            self.fail(lane)
        self.next_entry_id = EntryId(self.last_add_confirmed + 1)
        self.next_length = self.confirmed_length
        self.unsettled_entries = self.unsettled_bytes = 0
        return dropped

    @property
    def is_drained(self) -> bool:
        """Whether every admitted entry is confirmed and settled."""
        return self.unsettled_entries == 0 and not self._unconfirmed

    def is_current(self, lane: Lane[WaiterT]) -> bool:
        """Whether answers on this lane still count."""
        return not lane.is_failed and self.lanes[lane.position] is lane

    def _replace_lane(self, lane: Lane[WaiterT]) -> None:
        self.fail(self.lanes[lane.position])
        self.lanes[lane.position] = lane
        bit = 1 << lane.position
        self._failed_mask &= ~bit
        if not self._failed_mask:
            self._is_change_due = False
        for pending in self._unconfirmed:
            if self._stripe.stores(lane.position, pending.entry_id):
                self._mark_unsettled(pending, bit)
                lane.queue.append(pending)

    def _mark_unsettled(self, pending: PendingAdd[WaiterT], bit: int) -> None:
        pending.acked &= ~bit
        if not pending.unsettled:
            self.unsettled_entries += 1
            self.unsettled_bytes += len(pending.packet)
        pending.unsettled |= bit

    def _settle(self, pending: PendingAdd[WaiterT], bit: int) -> None:
        pending.unsettled &= ~bit
        if not pending.unsettled:
            self.unsettled_entries -= 1
            self.unsettled_bytes -= len(pending.packet)

    def _settle_failed_lanes(self, pending: PendingAdd[WaiterT]) -> None:
        for lane in self.lanes:
            bit = 1 << lane.position
            if lane.is_failed and pending.unsettled & bit:
                self._settle(pending, bit)
                self.incomplete.add(lane.bookie)

    def _write_set_mask(self, start: int) -> int:
        return sum(1 << position for position in self._stripe.write_set(start))
