"""Audit runs as values: what was started, by whom and why, how far it is, and how it ended.

A run is recorded under the project's own root, so that a new leader, a command and a page show the same. Pure.
"""

from __future__ import annotations

import enum
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from bookie.model.errors import PermanentError

DETAIL_MAX: Final = 2_000
"""Characters of a detail that are kept."""


class RunKind(enum.StrEnum):
    """Which check a run does."""

    BOOKIES = "bookies"
    """All ledger metadata against the registered bookies. The one that follows the loss of a bookie."""
    PLACEMENT = "placement"
    """All ensembles against the rack, zone and region policy."""
    REPLICAS = "replicas"
    """Every entry that a registered bookie should hold, asked of that bookie."""


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
    """Its process went, or lost the leadership."""

    @property
    def is_final(self) -> bool:
        """True if the run has ended."""
        return self in (RunState.DONE, RunState.FAILED, RunState.CANCELLED, RunState.ABANDONED)


class RunCause(enum.StrEnum):
    """What started a run."""

    SCHEDULE = "schedule"
    BOOKIE_LOSS = "bookie loss"
    COMMAND = "command"
    HTTP = "http"
    GRPC = "grpc"
    SPARK_UI = "spark ui"


class DamagedRunRecordError(PermanentError):
    """A stored record that cannot be read."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run. Times are epoch milliseconds, 0 if not known (yet)."""

    run_id: str
    """Begins with its start, so that ids sort by time: ``20261120T101500Z-0a1b2c``."""
    kind: RunKind
    cause: RunCause
    owner: str
    """Who asked: a user, ``anonymous``, or the name of the schedule's process."""
    process: str
    """Host name and process id of the owner."""
    state: RunState = RunState.WAITING
    is_dry_run: bool = False
    phase: str = ""
    done: int = 0
    total: int = 0
    """Of the phase, 0 if unknown."""
    started_ms: int = 0
    updated_ms: int = 0
    finished_ms: int = 0
    verdict: str = ""
    exit_code: int = -1
    """As of a one-shot run; -1 before its end."""
    ledgers: int = 0
    """Ledgers that were checked."""
    findings: Mapping[str, int] = field(default_factory=dict)
    """Ledgers by severity name."""
    tasks_changed: int = 0
    report: str = ""
    """Path of the report's summary, as the process that wrote it sees it."""
    detail: str = ""
    """Why it failed, was held or cancelled; who cancelled it."""

    @property
    def eta_ms(self) -> int | None:
        """The estimated end of the present phase at the present rate; None if unknown."""
        if self.state.is_final or not self.total or not self.done or self.updated_ms <= self.started_ms:
            return None
        return self.started_ms + (self.updated_ms - self.started_ms) * self.total // self.done

    def to_json(self) -> dict[str, Any]:
        """Plain values with snake_case names and RFC 3339 times; what ``/api/v1/runs`` answers."""
        return {
            "run_id": self.run_id,
            "kind": self.kind.value,
            "cause": self.cause.value,
            "owner": self.owner,
            "process": self.process,
            "state": self.state.value,
            "dry_run": self.is_dry_run,
            "phase": self.phase,
            "done": self.done,
            "total": self.total or None,
            "started": _rfc3339(self.started_ms),
            "updated": _rfc3339(self.updated_ms),
            "finished": _rfc3339(self.finished_ms),
            "eta": _rfc3339(self.eta_ms or 0),
            "verdict": self.verdict or None,
            "exit_code": None if self.exit_code < 0 else self.exit_code,
            "ledgers": self.ledgers,
            "findings": dict(self.findings),
            "tasks_changed": self.tasks_changed,
            "report": self.report or None,
            "detail": self.detail or None,
        }


def encode_run(record: RunRecord) -> bytes:
    """Bytes of a record's node."""
    fields = {name: getattr(record, name) for name in RunRecord.__slots__}
    return json.dumps(fields | {"findings": dict(record.findings), "detail": record.detail[:DETAIL_MAX]}).encode()


def decode_run(data: bytes) -> RunRecord:
    """Read a record. Fields that a newer version added are ignored.

    Raises:
        DamagedRunRecordError: it is not one.
    """
    try:
        fields = json.loads(data)
        known = {name: fields[name] for name in RunRecord.__slots__ if name in fields}
        known |= {"kind": RunKind(fields["kind"]), "cause": RunCause(fields["cause"])}
        return RunRecord(**(known | {"state": RunState(fields["state"])}))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise DamagedRunRecordError(f"a run record cannot be read: {error!r}") from error


def _rfc3339(epoch_ms: int) -> str | None:
    if not epoch_ms:
        return None
    moment = datetime.fromtimestamp(epoch_ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def new_run_id(started_ms: int, rng: random.Random) -> str:
    """Sorts by time; the suffix distinguishes runs of one second."""
    started = datetime.fromtimestamp(started_ms / 1000, UTC)
    return f"{started:%Y%m%dT%H%M%SZ}-{rng.randrange(1 << 24):06x}"
