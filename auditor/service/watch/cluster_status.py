"""The status of a cluster without the service: bookies, leader, repairs, runs, brake, delay and pauses.

Everything is read from the store, so it works while no auditor runs. The time of the next run is not included, because
only the leader has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from auditor.operating.client import ClusterClient, Document
from auditor.operating.maintenance import window_document
from auditor.operating.switches import readable_delay_s
from auditor.service.watch.repairs import Rate, RepairObservation
from bookie.metadata.bookies.drains import Drains
from bookie.metadata.bookies.first_seen_down import FirstSeenDown, unaudited
from bookie.metadata.bookies.maintenance import MaintenanceWindows
from bookie.metadata.bookies.registration import MISSING_SHARE_MAX
from bookie.metadata.runs.election import current_auditor
from bookie.metadata.runs.notes import KindPause
from bookie.metadata.runs.records import Runs
from bookie.model.run import RunKind, RunRecord
from bookie.model.times import rfc3339_if_known
from spark_jobs.runs.marking.brake import held_because

_RUNS_READ: Final = 50
"""Newest runs that are read to find those under way; a long run is still among the newest of its kind."""
_RUN_FIELDS: Final = (
    "run_id",
    "kind",
    "state",
    "dry_run",
    "phase",
    "done",
    "total",
    "started",
    "eta",
    "paused_until",
    "process",
)


async def cluster_status(client: ClusterClient, observation: RepairObservation, rate: Rate) -> Document:
    """Return the status as a document.

    Args:
        client: of the cluster.
        observation: the state of its repairs.
        rate: of its repairs, from earlier observations.

    Raises:
        StoreUnavailableError: no answer.
    """
    ports, root = client.ports, client.cluster.root
    registered, known = await ports.registrations.list(), await ports.registrations.known()
    noted = await FirstSeenDown(client.store, root).read()
    everyone = known | registered.registered
    runs, now_ms = Runs(client.store, root), ports.clock.epoch_ms()
    recorded = await runs.list(_RUNS_READ, now_ms)
    paused, windows = await runs.paused_kinds(now_ms), MaintenanceWindows(client.store, root)
    return {
        "ledgers_root": root,
        "instance_id": client.cluster.instance_id,
        "looked": rfc3339_if_known(observation.observed_ms),
        "auditor": await current_auditor(client.store, root) or None,
        "recovery_enabled": observation.is_enabled,
        "lost_bookie_delay_seconds": await readable_delay_s(client),
        "held_because": held_because(everyone, registered.registered, 0, None, MISSING_SHARE_MAX) or None,
        "bookies": {
            "writable": len(registered.writable),
            "read_only": len(registered.read_only),
            "draining": sorted((await Drains(client.store, root).read()).keys()),
            "lost": sorted((known | unaudited(noted)) - registered.registered),
        },
        "underreplicated": {
            "ledgers": len(observation.marked),
            "in_progress": observation.in_flight_count,
            "waiting": observation.waiting,
            "parked": sum(observation.parked.values()),
            "parked_by_reason": dict(observation.parked),
            "severities": {
                name: {
                    "ledgers": part.ledgers,
                    "bytes_estimate": part.bytes_estimate,
                    "oldest": rfc3339_if_known(part.oldest_ms, "seconds"),
                }
                for name, part in observation.severities.items()
            },
            "oldest_age_seconds": max(0, (observation.observed_ms - observation.oldest_ms) // 1000)
            if observation.oldest_ms
            else None,
            "ledgers_per_second": rate.ledgers_per_s,
            "eta_seconds": rate.eta_s,
        },
        "running": [_run(record) for record in recorded if not record.state.is_final],
        "maintenance": [window_document(window) for window in await windows.open_at(now_ms)],
        "pauses": [_pause(kind, pause) for kind, pause in paused.items()],
        "image": _image(recorded, now_ms),
    }


def _run(record: RunRecord) -> Document:
    fields = record.to_json()
    return {name: fields.get(name) for name in _RUN_FIELDS}


def _image(recorded: Sequence[RunRecord], now_ms: int) -> Document | None:
    """Return the newest image of ledger metadata from these runs; None: there is none."""
    written = [record for record in recorded if record.image.get("written_from_ms")]
    if not written:
        return None
    newest = max(written, key=lambda record: record.started_ms)
    return {
        "run_id": newest.run_id,
        "process": newest.process,
        "read_from": rfc3339_if_known(newest.image["written_from_ms"]),
        "age_seconds": max(0, now_ms - newest.image["written_from_ms"]) // 1000,
        "ledgers": newest.image.get("written_ledgers", 0),
        "bytes": newest.image.get("written_bytes", 0),
    }


def _pause(kind: RunKind, pause: KindPause) -> Document:
    return {"check": kind.value, "by": pause.owner, "until": rfc3339_if_known(pause.until_ms)}
