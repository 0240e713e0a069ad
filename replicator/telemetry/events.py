"""What a replicator reports: how each task ended, and damaged copies it met."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Protocol

from typing_extensions import override

from bookie.metadata.tasks.parked import ParkReason
from bookie.model.ids import LedgerId
from replicator.knowledge.evidence import CorruptCopy


class Ending(enum.Enum):
    """How the work on one task ended."""

    REPAIRED = "repaired"
    """Something was repaired, nothing is missing any more, the task is deleted."""
    NOTHING_MISSING = "nothing_missing"
    """There was nothing to do (any more); the task is deleted."""
    LEFT = "left"
    """Nothing is missing, and the task names no bookie: a placement mark that cannot be judged, or not now. It stays,
    also for Apache's workers."""
    MOVED = "moved"
    """Nothing was missing, copies were moved, every ensemble adheres to the placement policy, and the task is
    deleted."""
    LEDGER_DELETED = "ledger_deleted"
    """The ledger was deleted, and so is its task (S15)."""
    PARKED = "parked"
    """What could be repaired is; the rest waits for the cluster to change."""
    DELAYED = "delayed"
    """The ledger is not closed and a bookie of its last fragment is missing: it waits for the end of the grace
    period."""
    MARKED_AGAIN = "marked_again"
    """Nothing is missing, but the task stays and has its turn again: it was marked again, the ledger changed, or the
    lock went."""
    BUSY = "busy"
    """Another worker has the lock, or has finished the task."""
    STOPPED = "stopped"
    """Left as it was: repair was disabled, the lock or the session ended, or the process stops."""
    FAILED = "failed"
    """A temporary failure; retried after a pause."""


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The end of one task's turn. Figures count what metadata names now, not what was copied in vain."""

    ledger_id: LedgerId
    ending: Ending
    fragments: int = 0
    entries: int = 0
    bytes: int = 0
    """Stored bytes (header, digest and payload)."""
    is_recovered: bool = False
    """Whether the ledger was taken from its writer and closed in this turn."""
    seconds: float = 0.0
    reason: ParkReason | None = None
    detail: str = ""
    marked_ms: int = field(default=0, compare=False)
    """When the ledger was last marked, epoch milliseconds; 0 or less: not known."""
    replaced_copies: int = 0
    """Damaged copies replaced by good ones, in place or on another bookie."""
    moved_copies: int = 0
    """Positions moved to another bookie for better placement."""

    def fields(self) -> dict[str, str | int | float]:
        """As plain values for logs and JSON, without empty ones."""
        values: dict[str, str | int | float] = {"ledger_id": self.ledger_id, "ending": self.ending.value}
        if self.fragments:
            values |= {"fragments": self.fragments, "entries": self.entries, "bytes": self.bytes}
        if self.replaced_copies:
            values["replaced_copies"] = self.replaced_copies
        if self.moved_copies:
            values["moved_copies"] = self.moved_copies
        if self.is_recovered:
            values["recovered"] = True
        if self.reason is not None:
            values["reason"] = self.reason.value
        if self.detail:
            values["detail"] = self.detail
        return values | {"seconds": round(self.seconds, 3)}


@dataclass(frozen=True, slots=True)
class Outlook:
    """What the last listing showed."""

    eligible: int = 0
    locked: int = 0
    backing_off: int = 0
    """Failed a while ago, to be tried again."""
    given_up: int = 0
    """Of those, the ones which failed so often that a run with an end does not wait for them."""
    delayed: int = 0
    """Unclosed ledgers waiting for the end of the grace period."""
    parked: int = 0
    left: int = 0
    """Placement marks this worker cannot judge now, or at all; Apache's workers may act on them."""

    @property
    def is_settled(self) -> bool:
        """Whether every task is parked or left to others, or fails again and again."""
        return not self.eligible and not self.locked and not self.delayed and self.backing_off == self.given_up


@dataclass(frozen=True, slots=True)
class Load:
    """What a worker carries now, and totals since its start."""

    ledgers_in_flight: int = 0
    bytes_in_flight: int = 0
    """Bytes read and not stored yet."""
    bytes_per_second: int = 0
    """The throttle's rate; 0: unlimited."""
    copied_entries: int = 0
    """Entries acknowledged by targets, whether or not their repair succeeded."""
    copied_bytes: int = 0
    throttled_s: float = 0.0
    """Time in which the throttle held copying up."""
    unreachable_bookies: int = 0
    """Bookies whose circuit is open: they have not answered for a while."""
    pulled_bytes: int = 0
    """Of the copied bytes, those pulled by targets from their sources."""
    placement_debts: int = 0
    """Ledgers with copies in a bad place because of a repair, as last read by this worker."""


class EventSink(Protocol):
    """Receives every event. Must not block or raise."""

    def tasks_listed(self, outlook: Outlook) -> None:
        """The tasks were listed."""
        ...

    def task_ended(self, result: TaskResult) -> None:
        """The turn of a task has ended."""
        ...

    def copy_corrupt(self, ledger_id: LedgerId, copy: CorruptCopy) -> None:
        """A stored copy does not verify; another one was used if there is one."""
        ...


@dataclass(frozen=True, slots=True)
class Fanout(EventSink):
    """Passes every event to several sinks, in order."""

    sinks: tuple[EventSink, ...]

    @override
    def tasks_listed(self, outlook: Outlook) -> None:
        for sink in self.sinks:
            sink.tasks_listed(outlook)

    @override
    def task_ended(self, result: TaskResult) -> None:
        for sink in self.sinks:
            sink.task_ended(result)

    @override
    def copy_corrupt(self, ledger_id: LedgerId, copy: CorruptCopy) -> None:
        for sink in self.sinks:
            sink.copy_corrupt(ledger_id, copy)
