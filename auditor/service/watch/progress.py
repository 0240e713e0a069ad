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


def progress_document(look: RepairObservation, rate: Rate) -> Document:
    """Return one look as a document. Pure."""
    return {
        "looked": rfc3339(look.looked_ms),
        "recovery_enabled": look.is_enabled,
        "backlog": {
            "ledgers": len(look.marked),
            "severities": [
                {
                    "severity": name,
                    "ledgers": part.ledgers,
                    "bytes_estimate": part.bytes_estimate,
                    "oldest": rfc3339_if_known(part.oldest_ms, "seconds"),
                }
                for name, part in look.severities.items()
            ],
        },
        "waiting": look.waiting,
        "boosted": look.boosted,
        "parked": dict(look.parked),
        "oldest_age_seconds": max(0, (look.looked_ms - look.oldest_ms) // 1000) if look.oldest_ms else None,
        "in_flight_ledgers": look.in_flight_count,
        "in_flight": [_in_flight_document(each) for each in look.in_flight],
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
