"""The events of a replicator: the end of each task's turn, and damaged copies."""

from __future__ import annotations

import enum
from dataclasses import KW_ONLY, asdict, dataclass, field
from typing import Protocol

from typing_extensions import override

from bookie.metadata.tasks.parked import ParkReason
from bookie.model.ids import LedgerId
from replicator.knowledge.evidence import CorruptCopy


class Ending(enum.Enum):
    """How the turn of a task ended."""

    REPAIRED = "repaired"
    """The ledger was repaired, nothing is missing any more, and the task is deleted."""
    NOTHING_MISSING = "nothing_missing"
    """Nothing was left to do; the task is deleted."""
    LEFT = "left"
    """Nothing is missing, and the task is a placement mark that this worker cannot judge, for now or at all. The task
    stays, so that Apache's workers can act on it."""
    MOVED = "moved"
    """Nothing was missing, copies were moved, every ensemble adheres to the placement policy, and the task is
    deleted."""
    LEDGER_DELETED = "ledger_deleted"
    """The ledger was deleted, and so is its task (S15)."""
    PARKED = "parked"
    """Everything that can be repaired is repaired; the rest waits for a change of the cluster."""
    IN_GRACE = "delayed"
    """The ledger is not closed, a bookie of its last fragment is missing, and its grace period has not ended.
    Metrics and JSON name this ending "delayed", as earlier releases did."""
    MARKED_AGAIN = "marked_again"
    """Nothing is missing, but the task stays for another turn: it was marked again, the ledger changed, or the lock was
    lost."""
    BUSY = "busy"
    """Another worker has the lock, or has finished the task."""
    STOPPED = "stopped"
    """The task stays unchanged: repair was disabled, the lock or the session ended, or the process stops."""
    FAILED = "failed"
    """A temporary failure. The task is retried after a pause."""


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The result of one task's turn. The figures count only installed copies."""

    ledger_id: LedgerId
    ending: Ending
    _: KW_ONLY
    fragments: int = 0
    entries: int = 0
    bytes: int = 0
    """The bytes as stored (header, digest and payload)."""
    is_recovered: bool = False
    """Whether this turn recovered the ledger, which fences its writer and closes it."""
    seconds: float = 0.0
    reason: ParkReason | None = None
    detail: str = ""
    marked_ms: int = field(default=0, compare=False)
    """The time of the ledger's last mark in epoch milliseconds; 0 or less: unknown."""
    replaced_copies: int = 0
    """The number of damaged copies that were replaced by good ones, in place or on another bookie."""
    moved_copies: int = 0
    """The number of positions that were moved to another bookie for better placement."""

    def fields(self) -> dict[str, str | int | float]:
        """Return plain values for logs and JSON, without empty ones."""
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


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueState:
    """The result of the last listing."""

    eligible: int = 0
    locked: int = 0
    backing_off: int = 0
    """Tasks that failed recently and wait for their next attempt."""
    given_up: int = 0
    """Those of ``backing_off`` with so many failures that a run with ``once`` does not wait for them."""
    in_grace: int = 0
    """Unclosed ledgers in their grace periods."""
    parked: int = 0
    left: int = 0
    """Placement marks that this worker cannot judge, for now or at all. Apache's workers may act on them."""

    def fields(self) -> dict[str, int]:
        """Return the counts by their names in metrics, logs and JSON."""
        return {"delayed" if name == "in_grace" else name: count for name, count in asdict(self).items()}

    @property
    def is_settled(self) -> bool:
        """Whether every task is parked, left to others, or fails repeatedly."""
        return not self.eligible and not self.locked and not self.in_grace and self.backing_off == self.given_up


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerLoad:
    """The current load of a worker, and totals since its start."""

    ledgers_in_flight: int = 0
    bytes_in_flight: int = 0
    """The bytes that are read and not stored yet."""
    bytes_per_second: int = 0
    """The limit of the copy rate; 0: unlimited."""
    copied_entries: int = 0
    """The entries that targets acknowledged, whether or not their repair succeeded."""
    copied_bytes: int = 0
    throttled_s: float = 0.0
    """The seconds during which the limit delayed copying."""
    unreachable_bookies: int = 0
    """Bookies with an open circuit breaker: they have not answered for some time."""
    pulled_bytes: int = 0
    """The part of the copied bytes that targets read from the sources by themselves."""
    placement_debts: int = 0
    """Ledgers whose copies a repair left in a bad place, as last read by this worker."""


class EventSink(Protocol):
    """Receives every event. Implementations must not block or raise."""

    def tasks_listed(self, queue_state: QueueState) -> None:
        """Handle a new listing of the tasks."""
        ...

    def task_ended(self, result: TaskResult) -> None:
        """Handle the end of a task's turn."""
        ...

    def copy_corrupt(self, ledger_id: LedgerId, copy: CorruptCopy) -> None:
        """Handle a damaged copy. Another copy was used if there is one."""
        ...


@dataclass(frozen=True, slots=True)
class Fanout(EventSink):
    """Passes every event to several sinks, in order."""

    sinks: tuple[EventSink, ...]

    @override
    def tasks_listed(self, queue_state: QueueState) -> None:
        for sink in self.sinks:
            sink.tasks_listed(queue_state)

    @override
    def task_ended(self, result: TaskResult) -> None:
        for sink in self.sinks:
            sink.task_ended(result)

    @override
    def copy_corrupt(self, ledger_id: LedgerId, copy: CorruptCopy) -> None:
        for sink in self.sinks:
            sink.copy_corrupt(ledger_id, copy)
