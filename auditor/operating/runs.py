"""Pauses of schedules, and requests to end a run, without the service and with a record of each change."""

from __future__ import annotations

from typing import Final

from auditor.operating.client import Actor, ClusterClient, Document
from bookie.metadata.runs.notes import KindPause
from bookie.metadata.runs.records import Runs
from bookie.model.run import PAUSE_S_MAX, RunKind, RunRecord
from bookie.model.times import rfc3339_if_known

PAUSE_S_MIN: Final = 60
"""The shortest pause; the auditor's option has the same minimum."""
SPAN_S_MAX: Final = int(PAUSE_S_MAX)


async def list_schedules(client: ClusterClient) -> Document:
    """Return whether the schedule of each kind is paused, until when and by whom.

    Raises:
        StoreUnavailableError: no answer.
    """
    paused = await Runs(client.store, client.cluster.root).paused_kinds(client.ports.clock.epoch_ms())
    return {"items": [schedule_row(kind, paused.get(kind)) for kind in RunKind]}


async def pause_schedule(client: ClusterClient, actor: Actor, kind: RunKind, span_s: int) -> Document:
    """Pause the schedule of a kind for some time from now, under any leader.

    Raises:
        StoreUnavailableError, WriteOutcomeUnknownError: no answer; pausing again is safe.
    """
    until_ms = client.ports.clock.epoch_ms() + span_s * 1000
    await actor.record(client, "schedule pause", f"{kind.value} for {span_s} s")
    await Runs(client.store, client.cluster.root).pause_kind(kind, actor.name, until_ms)
    return schedule_row(kind, KindPause(actor.name, until_ms))


async def resume_schedule(client: ClusterClient, actor: Actor, kind: RunKind) -> Document:
    """End the pause of a schedule; ``was_paused`` is false if there was none, and nothing is changed. Idempotent.

    Raises:
        StoreUnavailableError, WriteOutcomeUnknownError: no answer; resuming again is safe.
    """
    runs = Runs(client.store, client.cluster.root)
    await client.store.sync(client.cluster.root)  # so that a change made just before is found
    was_paused = kind in await runs.paused_kinds(client.ports.clock.epoch_ms())
    if was_paused:
        await actor.record(client, "schedule resume", kind.value)
        await runs.resume_kind(kind)
    return {**schedule_row(kind, None), "was_paused": was_paused}


async def request_end(client: ClusterClient, actor: Actor, run_id: str) -> RunRecord | None:
    """Record the request to end a run, for the process of the run. Return the run; None if it does not exist.

    Raises:
        StoreUnavailableError, WriteOutcomeUnknownError: no answer; repeating the request is safe.
    """
    runs = Runs(client.store, client.cluster.root)
    record = await runs.get(run_id)
    if record is not None and not record.state.is_final:
        await actor.record(client, "run cancel", run_id)
        await runs.request_cancel(run_id, actor.name)
    return record


def schedule_row(kind: RunKind, pause: KindPause | None) -> Document:
    """Return the schedule of a kind as a document."""
    return {
        "check": kind.value,
        "paused": pause is not None,
        "paused_until": rfc3339_if_known(pause.until_ms) if pause else None,
        "paused_by": pause.owner if pause else None,
    }
