"""Placement debts: ledgers with copies that repair had to put in a bad place."""

from __future__ import annotations

from auditor.operating.client import ClusterClient, Document
from bookie.metadata.tasks.debts import PlacementDebts
from bookie.model.ids import LedgerId
from bookie.model.times import rfc3339_if_known


async def list_debts(client: ClusterClient, limit: int, after: LedgerId | None = None) -> Document:
    """Return debts by ledger id, and whether each ledger is marked for a move.

    Args:
        client: of the cluster.
        limit: largest number of debts.
        after: begin after this ledger; None: at the first.

    Raises:
        StoreUnavailableError: no answer.
    """
    debts = await PlacementDebts(client.store, client.cluster.root).list()
    left = sorted((debt for debt in debts if after is None or debt.ledger_id > after), key=lambda debt: debt.ledger_id)
    page = left[:limit]
    tasks = await client.ports.tasks.read_many([debt.ledger_id for debt in page])
    rows = [
        {
            "ledger_id": debt.ledger_id,
            "state": "waiting" if task is None else "marked",
            "since": rfc3339_if_known(debt.since_ms),
            "fragments": list(debt.first_entry_ids),
            "detail": debt.detail,
        }
        for debt, task in zip(page, tasks, strict=True)
    ]
    return {"items": rows, "next_after": page[-1].ledger_id if len(left) > limit else None}
