"""The list of all bookies of a cluster, as a document: states, addresses, disks and losses. Changes nothing."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from auditor.operating.client import ClusterClient, Document
from auditor.operating.drains import registered_as
from bookie.metadata.bookies.drains import Drains
from bookie.metadata.bookies.first_seen_down import Down, FirstSeenDown, unaudited
from bookie.metadata.bookies.maintenance import MaintenanceWindows
from bookie.metadata.bookies.marking_times import MarkingPolicy
from bookie.metadata.bookies.registration import MISSING_SHARE_MAX
from bookie.metadata.tasks.switches import InvalidDelayError
from bookie.model.ids import BookieId
from bookie.model.times import rfc3339, rfc3339_if_known
from bookie.wire.port import InfoReply
from bookie.wire.requests import Info
from spark_jobs.runs.marking.brake import held_because

INFO_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class BookieList:
    """Every bookie that ever joined."""

    rows: tuple[Document, ...]
    """One for each bookie, by name. ``detail`` is the reason why other facts are missing, or null."""
    unmarked_because: str | None
    """Why no audit marks a ledger now; None: audits mark."""


async def list_bookies(client: ClusterClient) -> BookieList:
    """Read the list, and ask each registered bookie for its disk and its ledgers.

    Raises:
        StoreUnavailableError, NotAClusterError: ZooKeeper did not answer, or some of its nodes are unusable.
    """
    registrations, root = client.ports.registrations, client.cluster.root
    registered, cookies = await registrations.list(), await registrations.known()
    drained = (await Drains(client.store, root).read()).keys()
    losses = await FirstSeenDown(client.store, root).read()
    policy, why_unknown = await _marking_policy(client)

    async def row(bookie: BookieId) -> Document:
        if bookie in registered.registered:
            state = "draining" if bookie in drained else registered_as(bookie, registered)
            return await _registered_row(client, bookie, state)
        return _lost_row(bookie, losses.get(bookie), policy, why_unknown)

    is_enabled = not await client.ports.tasks.switches.is_disabled()
    held = held_because(cookies | registered.registered, registered.registered, 0, None, MISSING_SHARE_MAX)
    known = cookies | registered.registered | unaudited(losses)
    rows = await asyncio.gather(*(row(bookie) for bookie in sorted(known)))
    return BookieList(tuple(rows), unmarked_because(held, is_enabled=is_enabled))


def unmarked_because(held: str | None, *, is_enabled: bool) -> str | None:
    """Return why no audit marks a ledger now; None: audits mark. ``held`` is the reason of the brake."""
    if not is_enabled:
        return "recovery is disabled: `bkheal recovery enable`"
    return f"the brake holds, because {held}" if held else None


def bookie_row(bookie: str, state: str, **facts: object) -> Document:
    """Return a row in which all facts that are not given are null."""
    names = ("endpoint", "incarnation", "ledgers", "disk_free_bytes", "disk_total_bytes")
    nothing = dict.fromkeys((*names, "first_seen_down", "audit_due", "detail"))
    return {"bookie_id": bookie, "state": state, **nothing, **facts}


async def _marking_policy(client: ClusterClient) -> tuple[MarkingPolicy, str | None]:
    """Return when ledgers of lost bookies are marked, and why this is unknown; None: it is known.

    If the delay is invalid, the operator needs the list of bookies even more.
    """
    windows = await MaintenanceWindows(client.store, client.cluster.root).open_at(client.ports.clock.epoch_ms())
    try:
        delay_s = await client.ports.tasks.switches.lost_bookie_delay_s()
    except InvalidDelayError as error:
        return MarkingPolicy(0), f"the time at which its ledgers are marked is unknown: {error}"
    return MarkingPolicy(delay_s, windows=windows), None


async def _registered_row(client: ClusterClient, bookie: BookieId, state: str) -> Document:
    service = await client.ports.registrations.service_info(bookie)
    reply = await client.ports.transport.ask(bookie, Info(), INFO_TIMEOUT_S)
    endpoint = service.endpoints[0] if service and service.endpoints else None
    facts: Document = {"detail": _why_silent(reply)}
    if reply.info:
        facts["ledgers"] = reply.info.ledger_count
        facts["disk_free_bytes"] = reply.info.disk_free_bytes
        facts["disk_total_bytes"] = reply.info.disk_total_bytes
    return bookie_row(
        bookie,
        state,
        endpoint=f"{endpoint.protocol}://{endpoint.host}:{endpoint.port}" if endpoint else None,
        incarnation=service.incarnation if service else None,
        **facts,
    )


def _lost_row(bookie: BookieId, loss: Down | None, policy: MarkingPolicy, why_unknown: str | None) -> Document:
    if loss is None:
        return bookie_row(bookie, "lost")
    since = rfc3339_if_known(loss.since_ms)
    if loss.audited_ms:
        return bookie_row(bookie, "lost", first_seen_down=since)
    if why_unknown is not None:
        return bookie_row(bookie, "lost", first_seen_down=since, detail=why_unknown)
    # The second time contains the other reasons to wait, which the leader recorded.
    due_ms = max(policy.times(bookie, loss).due_ms, loss.due_ms(policy.delay_s))
    return bookie_row(bookie, "lost", first_seen_down=since, audit_due=rfc3339(due_ms))


def _why_silent(reply: InfoReply) -> str | None:
    """Return the reason why a bookie did not answer; None: it did."""
    if reply.info is not None:
        return None
    return f"{reply.status.name}, {reply.detail}" if reply.detail else reply.status.name
