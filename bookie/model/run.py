"""Audit runs as values: kind, requester, cause, progress and result (pure).

Runs are recorded in ZooKeeper under the project's own root, so a new leader, a command and a page show the same runs.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

from bookie.model.exit_codes import ExitCode
from bookie.model.records import decode_record, encode_record
from bookie.model.severity import Severity
from bookie.model.times import rfc3339_if_known

PAUSE_S: Final = 3600
"""Default of the option ``pause_s``: the time for which a run, or the schedule of a kind, stays paused. A forgotten
pause must not prevent a check permanently."""
PAUSE_S_MAX: Final = 7 * 86_400
_ID_TIME: Final = "%Y%m%dT%H%M%SZ"
_MISDATED_MS: Final = 86_400_000
DETAIL_MAX: Final = 2_000
"""Longest stored detail, in characters."""


class RunKind(enum.StrEnum):
    """The check made by a run."""

    BOOKIES = "bookies"
    """Compare all ledger metadata with the registered bookies. This check also runs after a bookie is lost."""
    PLACEMENT = "placement"
    """Compare all ensembles with the rack, zone and region policy."""
    REPLICAS = "replicas"
    """Ask each registered bookie for every entry it should hold."""
    REFERENCES = "references"
    """Compare all ledgers with the references of Pulsar's topics, subscriptions and schemas."""
    EVERYTHING = "everything"
    """The checks of bookies and of placement, and the metadata lint, with one read of all ledger metadata."""

    @property
    def contained(self) -> tuple[RunKind, ...]:
        """The other kinds of checks included in a run of this kind."""
        return (RunKind.BOOKIES, RunKind.PLACEMENT) if self is RunKind.EVERYTHING else ()


class RunState(enum.StrEnum):
    """The state of a run. The last four are final."""

    WAITING = "waiting"
    RUNNING = "running"
    PAUSED = "paused"
    DONE = "done"
    """Completed; ``verdict`` is the result."""
    FAILED = "failed"
    CANCELLED = "cancelled"
    ABANDONED = "abandoned"
    """Its process ended or lost the leadership before the run was complete."""

    @property
    def is_final(self) -> bool:
        """Whether the run has ended."""
        return self in (RunState.DONE, RunState.FAILED, RunState.CANCELLED, RunState.ABANDONED)


class RunCause(enum.StrEnum):
    """The cause of a run."""

    SCHEDULE = "schedule"
    BOOKIE_LOSS = "bookie loss"
    COMMAND = "command"
    HTTP = "http"
    GRPC = "grpc"
    SPARK_UI = "spark ui"


class Ended(enum.StrEnum):
    """Why a run withdraws a mark: nothing is left to repair."""

    LEDGER_DELETED = "ledger_deleted"
    REPLACED = "replaced"
    """No ensemble of the ledger names the mark's bookies any more."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run. Times are epoch milliseconds, 0 if unknown (so far)."""

    run_id: str
    """Begins with the start time, so ids sort by time: ``20261120T101500Z-0a1b2c``."""
    kind: RunKind
    cause: RunCause
    owner: str
    """The requester: a user, ``anonymous``, or the name of the process with the schedule."""
    process: str
    """Host name and process id of the owner."""
    state: RunState = RunState.WAITING
    is_dry_run: bool = False
    phase: str = ""
    done: int = 0
    total: int = 0
    """Total units of the phase, 0 if unknown."""
    phase_began_ms: int = 0
    """Time of the phase's first recorded progress; 0 in records of earlier releases, and before any progress."""
    phase_began_done: int = 0
    """``done`` at that time."""
    started_ms: int = 0
    updated_ms: int = 0
    finished_ms: int = 0
    verdict: str = ""
    exit_code: int = -1
    """The exit code of an equivalent one-shot run; -1 until the run has ended."""
    ledgers: int = 0
    """Number of ledgers checked."""
    findings: Mapping[str, int] = field(default_factory=dict)
    """Number of ledgers by severity name."""
    tasks_changed: int = 0
    held_back: Mapping[str, int] = field(default_factory=dict)
    """Number of ledgers with findings but without a mark yet, by reason."""
    withdrawn: Mapping[str, int] = field(default_factory=dict)
    """Number of marks deleted because their reason had ended, by ``Ended``."""
    image: Mapping[str, int] = field(default_factory=dict)
    """Figures of the images of ledger metadata: ``marked`` ledgers by the earlier image; ``written_from_ms`` (epoch
    milliseconds), ``written_ledgers`` and ``written_bytes`` of the image written by the run, 0 without one."""
    namespaces: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Number of ledgers by severity name and namespace of Pulsar: for a bounded number of namespaces, and ``other``."""
    report: str = ""
    """Path of the report's summary, as seen by its writer."""
    detail: str = ""
    """Why the run failed, was held or was cancelled, and who cancelled it."""
    is_every_ledger: bool = True
    """Whether the run was to check every ledger; a replicas check may be limited to a range or a sample."""
    pause_ends_ms: int = 0
    """Time at which a paused run continues by itself; 0 if not paused."""
    contained_done: tuple[RunKind, ...] = ()
    """The contained checks that checked every ledger; the run as a whole may be incomplete."""

    @property
    def kind_text(self) -> str:
        """The kind, with a note if the run is a dry run or checks only a range or a sample: ``replicas (part)``."""
        notes = [*(["dry run"] if self.is_dry_run else []), *([] if self.is_every_ledger else ["part"])]
        return f"{self.kind.value} ({', '.join(notes)})" if notes else self.kind.value

    @property
    def is_complete(self) -> bool:
        """Whether the run is done, checked every ledger and was not held: what it did not find did not exist."""
        is_whole = self.is_every_ledger and self.exit_code not in (ExitCode.HELD, ExitCode.PARTIAL)
        return self.state is RunState.DONE and is_whole and self.verdict not in ("held", "incomplete")

    @property
    def was_stopped(self) -> bool:
        """Whether it was cancelled, or ended by an orderly stop of its auditor: then it shows no fault."""
        is_orderly = self.state is RunState.ABANDONED and self.exit_code == ExitCode.CANCELLED
        return self.state is RunState.CANCELLED or is_orderly

    def by_check(self) -> tuple[RunRecord, ...]:
        """Return the record, and the result of each contained check as if it had been a run of its own. Pure.

        Misplaced ledgers are findings of the placement check, and everything else belongs to the check of bookies. A
        contained check is complete if the run is, or if the record names it. Records of earlier releases name none.
        """
        return (self, *(self._as_single_check(kind) for kind in self.kind.contained))

    def _as_single_check(self, kind: RunKind) -> RunRecord:
        def is_own(severity: str) -> bool:
            return (severity.lower() == Severity.MISPLACED.label) == (kind is RunKind.PLACEMENT)

        alone = replace(
            self,
            kind=kind,
            findings={name: count for name, count in self.findings.items() if is_own(name)},
            namespaces={name: counts for name, counts in self.namespaces.items() if is_own(name)},
            held_back={} if kind is RunKind.PLACEMENT else self.held_back,
        )
        if self.state is RunState.DONE and kind in self.contained_done and not self.is_complete:
            return replace(alone, exit_code=int(ExitCode.OK), verdict="", detail="")
        return alone

    @property
    def started_by(self) -> str:
        """Who or what started the run, as text. After a loss, ``owner`` is the list of lost bookies."""
        is_loss = self.cause is RunCause.BOOKIE_LOSS
        return f"loss of {self.owner}" if is_loss else f"{self.owner} ({self.cause.value})"

    @property
    def eta_ms(self) -> int | None:
        """The estimated end of the present phase at the present rate; None if unknown."""
        passed_ms = self.updated_ms - (self.phase_began_ms or self.started_ms)
        gained = self.done - self.phase_began_done
        if self.state.is_final or not self.total or gained <= 0 or passed_ms <= 0:
            return None
        return self.updated_ms + passed_ms * (self.total - self.done) // gained

    def with_progress(self, phase: str, done: int, total: int, now_ms: int) -> RunRecord:
        """Return the record with this progress; the rate is measured from the beginning of a phase. Pure."""
        is_same = phase == self.phase and self.phase_began_ms and done >= self.done
        began_ms, began_done = (self.phase_began_ms, self.phase_began_done) if is_same else (now_ms, done)
        return replace(self, phase=phase, done=done, total=total, phase_began_ms=began_ms, phase_began_done=began_done)

    def to_json(self) -> dict[str, Any]:
        """Return plain values with snake_case names and RFC 3339 times, as in ``/api/v1/runs``."""
        return {
            "run_id": self.run_id,
            "kind": self.kind.value,
            "cause": self.cause.value,
            "owner": self.owner,
            "process": self.process,
            "state": self.state.value,
            "dry_run": self.is_dry_run,
            "every_ledger": self.is_every_ledger,
            "phase": self.phase,
            "done": self.done,
            "total": self.total or None,
            "started": rfc3339_if_known(self.started_ms),
            "updated": rfc3339_if_known(self.updated_ms),
            "finished": rfc3339_if_known(self.finished_ms),
            "eta": rfc3339_if_known(self.eta_ms or 0),
            "verdict": self.verdict or None,
            "exit_code": None if self.exit_code < 0 else self.exit_code,
            "ledgers": self.ledgers,
            "findings": dict(self.findings),
            "tasks_changed": self.tasks_changed,
            "held_back": dict(self.held_back),
            "withdrawn": dict(self.withdrawn),
            "image": dict(self.image),
            "report": self.report or None,
            "detail": self.detail or None,
            "paused_until": rfc3339_if_known(self.pause_ends_ms),
        }


def encode_run(record: RunRecord) -> bytes:
    """Return the content of a record's node."""
    return encode_record(replace(record, detail=record.detail[:DETAIL_MAX]))


def decode_run(data: bytes) -> RunRecord:
    """Return the record in a node's content.

    Raises:
        UnreadableRecordError: the content is not a run record, or was written by a newer release.
    """
    return decode_record(data, RunRecord)


def new_run_id(started_ms: int, rng: random.Random) -> str:
    """Return a new run id. Ids sort by time; the random suffix distinguishes runs of the same second."""
    started = datetime.fromtimestamp(started_ms / 1000, UTC)
    return f"{started.strftime(_ID_TIME)}-{rng.randrange(1 << 24):06x}"


def started_ms(run_id: str) -> int | None:
    """Return the time in a run id, epoch milliseconds, exact to a second; None for an id of another form."""
    try:
        started = datetime.strptime(run_id.partition("-")[0], _ID_TIME).replace(tzinfo=UTC)
    except ValueError:
        return None
    return round(started.timestamp() * 1000)


def is_misdated(run_id: str, now_ms: int) -> bool:
    """Return whether the time in a run id is a day or more in the future: the clock of the run was wrong."""
    started = started_ms(run_id)
    return started is not None and started - now_ms >= _MISDATED_MS


def newest_first(run_ids: Iterable[str], now_ms: int) -> list[str]:
    """Return run ids, newest first. Misdated ones come last, because they are not newer than the others. Pure."""
    first_misdated = datetime.fromtimestamp((now_ms + _MISDATED_MS) / 1000, UTC).strftime(_ID_TIME)

    def age(run_id: str) -> tuple[bool, str]:
        return run_id < first_misdated or not is_misdated(run_id, now_ms), run_id

    return sorted(run_ids, key=age, reverse=True)
