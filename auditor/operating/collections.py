"""Garbage collections that bookies hold back, with a record of each change."""

from __future__ import annotations

from auditor.operating.client import Actor, ClusterClient, Document
from bookie.metadata.bookies.collections import HeldCollection, HeldCollections
from bookie.model.ids import BookieId
from bookie.model.times import rfc3339
from bookie.runtime.human import counted


async def list_collections(client: ClusterClient) -> Document:
    """Return the deletions that bookies hold back, and the allowances.

    Raises:
        StoreUnavailableError: no answer.
    """
    now_ms = client.ports.clock.epoch_ms()
    return {"items": [row(held, now_ms) for held in await _records(client).all()]}


async def allow_collection(
    client: ClusterClient,
    actor: Actor,
    bookie: BookieId,
    span_s: int,
    ledgers_max: int | None = None,
) -> Document:
    """Allow a bookie for some time to delete the ledgers that it holds back; see ``HeldCollections.allow``.

    Raises:
        NothingHeldError: the bookie holds nothing back; nothing was changed.
        StoreUnavailableError, WriteOutcomeUnknownError: no answer; allowing it again is safe.
    """
    now_ms = client.ports.clock.epoch_ms()
    most = "" if ledgers_max is None else f", at most {counted(ledgers_max, 'ledger')}"
    await actor.record(client, "collection allow", f"{bookie} for {span_s} s{most}")
    held = await _records(client).allow(bookie, actor.name, now_ms, now_ms + span_s * 1000, ledgers_max)
    return row(held, now_ms)


async def deny_collection(client: ClusterClient, actor: Actor, bookie: BookieId) -> bool:
    """Remove the record of a bookie with its allowance. Return whether there was one. Idempotent.

    Raises:
        StoreUnavailableError, WriteOutcomeUnknownError: no answer; denying it again is safe.
    """
    records = _records(client)
    if not await records.exists(bookie):
        return False
    await actor.record(client, "collection deny", bookie)
    await records.remove(bookie)
    return True


def row(held: HeldCollection, now_ms: int) -> Document:
    """Return a record as a document."""
    is_allowed = held.is_allowed(now_ms)
    return {
        "bookie_id": held.bookie,
        "ledgers": held.ledgers,
        "known": held.known,
        "since": rfc3339(held.since_ms),
        "allowed_by": held.allowed_by if is_allowed else None,
        "allowed_until": rfc3339(held.allowed_until_ms) if is_allowed else None,
        "allowed_ledgers": held.allowed_max if is_allowed else None,
    }


def _records(client: ClusterClient) -> HeldCollections:
    return HeldCollections(client.store, client.cluster.root)
