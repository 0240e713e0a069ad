"""The progress of repairs as a document, for the command and the API."""

from __future__ import annotations

from auditor.operating.client import ClusterClient, Document
from auditor.service.watch.repairs import LedgerInFlight, Rate, RepairObservation, RepairWatch
from bookie.metadata.bookies.drains import Drains
from bookie.metadata.tasks.boosts import Boosts
from bookie.metadata.tasks.reservations import Reservations
from bookie.model.times import rfc3339, rfc3339_if_known


def make_repair_watch(client: ClusterClient) -> RepairWatch:
    """Return a watch on the repairs of the client's cluster."""
    ports, store, root = client.ports, client.store, client.cluster.root
    return RepairWatch(
        ports.tasks,
        ports.ledgers,
        ports.registrations,
        client.parked,
        Reservations(store, root),
        Drains(store, root),
        Boosts(store, root),
        ports.clock,
    )


def progress_document(observation: RepairObservation, rate: Rate) -> Document:
    """Return one observation as a document. Pure."""
    return {
        "looked": rfc3339(observation.observed_ms),
        "recovery_enabled": observation.is_enabled,
        "backlog": {
            "ledgers": len(observation.marked),
            "severities": [
                {
                    "severity": name,
                    "ledgers": part.ledgers,
                    "bytes_estimate": part.bytes_estimate,
                    "oldest": rfc3339_if_known(part.oldest_ms, "seconds"),
                }
                for name, part in observation.severities.items()
            ],
        },
        "waiting": observation.waiting,
        "boosted": observation.boosted,
        "parked": dict(observation.parked),
        "oldest_age_seconds": max(0, (observation.observed_ms - observation.oldest_ms) // 1000)
        if observation.oldest_ms
        else None,
        "in_flight_ledgers": observation.in_flight_count,
        "in_flight": [_in_flight_document(each) for each in observation.in_flight],
        "measured_seconds": round(rate.measured_s, 1),
        "ledgers_per_second": rate.ledgers_per_s,
        "bytes_per_second": rate.bytes_per_s,
        "eta_seconds": rate.eta_s,
    }


def _in_flight_document(each: LedgerInFlight) -> Document:
    copies = [
        {
            "first_entry_id": copy.first_entry_id,
            "position": copy.position,
            "target": copy.target,
            "entries_done": copy.entries_done,
            "entries_total": copy.entries_total,
            "bytes_done": copy.bytes_done,
            "bytes_total": copy.bytes_total,
        }
        for copy in each.copies
    ]
    return {"ledger_id": each.ledger_id, "worker": each.worker, "severity": each.severity, "copies": copies}
