"""Converts values to messages of the control service, and kinds in both directions. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from google.protobuf.timestamp_pb2 import Timestamp

from auditor.api import control_pb2 as pb
from auditor.api.control import ServiceStatus
from auditor.api.problems import InvalidRequestError
from bookie.model.run import RunKind, RunRecord, RunState

KINDS: Final = {
    RunKind.BOOKIES: pb.RUN_KIND_BOOKIES,
    RunKind.PLACEMENT: pb.RUN_KIND_PLACEMENT,
    RunKind.REPLICAS: pb.RUN_KIND_REPLICAS,
    RunKind.REFERENCES: pb.RUN_KIND_REFERENCES,
    RunKind.EVERYTHING: pb.RUN_KIND_EVERYTHING,
}
STATES: Final = {
    RunState.WAITING: pb.RUN_STATE_WAITING,
    RunState.RUNNING: pb.RUN_STATE_RUNNING,
    RunState.PAUSED: pb.RUN_STATE_PAUSED,
    RunState.DONE: pb.RUN_STATE_DONE,
    RunState.FAILED: pb.RUN_STATE_FAILED,
    RunState.CANCELLED: pb.RUN_STATE_CANCELLED,
    RunState.ABANDONED: pb.RUN_STATE_ABANDONED,
}


def run_message(record: RunRecord) -> pb.Run:
    """Return the message of one run."""
    return pb.Run(
        run_id=record.run_id,
        kind=KINDS[record.kind],
        cause=record.cause.value,
        owner=record.owner,
        process=record.process,
        state=STATES[record.state],
        is_dry_run=record.is_dry_run,
        phase=record.phase,
        done=record.done,
        total=record.total,
        started=_time(record.started_ms),
        updated=_time(record.updated_ms),
        finished=_time(record.finished_ms),
        eta=_time(record.eta_ms or 0),
        verdict=record.verdict,
        exit_code=None if record.exit_code < 0 else record.exit_code,
        ledgers=record.ledgers,
        findings=dict(record.findings),
        tasks_changed=record.tasks_changed,
        report=record.report,
        detail=record.detail,
        paused_until=_time(record.pause_ends_ms),
    )


def status_message(status: ServiceStatus) -> pb.Status:
    """Return the message of the service and its cluster."""
    severities = {severity.label: part.ledgers for severity, part in status.backlog.severities.items()}
    return pb.Status(
        version=status.version,
        process=status.process,
        is_leader=status.is_leader,
        leader=status.leader,
        is_store_connected=status.is_store_connected,
        metadata_uri=status.metadata_uri,
        instance_id=status.instance_id,
        is_recovery_enabled=status.is_recovery_enabled,
        lost_bookie_delay_seconds=status.lost_bookie_delay_s,
        writable=status.writable,
        read_only=status.read_only,
        lost=[lost.bookie_id for lost in status.lost],
        held_because=status.held_because,
        underreplicated_ledgers=status.backlog.ledgers,
        underreplicated_by_severity=severities,
        counted=_time(status.backlog.counted_ms),
        running=[run_message(record) for record in status.running],
        last=[run_message(record) for record in status.last.values()],
        paused_kinds=[KINDS[kind] for kind in status.paused_kinds],
        pauses=[
            pb.Pause(kind=KINDS[kind], owner=pause.owner, until=_time(pause.until_ms))
            for kind, pause in status.paused_kinds.items()
        ],
        maintenance=[
            pb.MaintenanceWindow(
                target=window.target,
                bookies=window.bookies,
                by=window.by,
                since=_time(window.since_ms),
                until=_time(window.until_ms),
                hold_critical=window.holds_critical,
                note=window.note,
            )
            for window in status.windows
        ],
    )


def options_of(message: pb.RunOptions) -> Mapping[str, bool | int | float]:
    """Return the options named in a request."""
    return {field.name: value for field, value in message.ListFields()}


def kind_of(value: int) -> RunKind:
    """Return the kind named in a request.

    Raises:
        InvalidRequestError: there is no kind, or this version does not support it.
    """
    for kind, number in KINDS.items():
        if number == value:
            return kind
    raise InvalidRequestError(f"kind must be one of {', '.join(kind.value for kind in KINDS)}")


def _time(epoch_ms: int) -> Timestamp | None:
    if epoch_ms <= 0:
        return None
    return Timestamp(seconds=epoch_ms // 1000, nanos=epoch_ms % 1000 * 1_000_000)
