"""The data left on drained bookies, as a document. Changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from auditor.operating.client import ClusterClient, Document, check_names_or_in_ledgers
from auditor.operating.drains import Counting, registered_as, silent
from auditor.safety.accepted import valid_accepted_losses
from auditor.safety.draining import Left, holdings_of, judge
from auditor.safety.holdings import TOPICS_SHOWN_MAX, HeldLedgers
from auditor.safety.scan import LedgerScanResult, count
from bookie.metadata.bookies.drains import Drain, Drains
from bookie.metadata.tasks.decisions import Decision, Decisions
from bookie.model.ids import BookieId, LedgerId
from bookie.model.times import rfc3339_if_known


@dataclass(frozen=True, slots=True)
class DrainObservation:
    """The last observed state."""

    drains: Mapping[BookieId, Drain]
    states: Mapping[BookieId, str]
    left: Left
    is_enabled: bool
    ledgers_per_s: float | None = None
    """The number of ledgers per second that left the bookies since the watch began; None if unknown."""
    not_drained: tuple[BookieId, ...] = ()
    """Registered bookies without a drain, which ended a watch: nothing moves their data."""

    @property
    def eta_s(self) -> float | None:
        """Return the seconds until nothing is left, at this rate."""
        if not self.ledgers_per_s:
            return None
        return len(self.left.holdings.ledgers) / self.ledgers_per_s


async def accepted_losses_on(client: ClusterClient, bookies: Sequence[BookieId]) -> Mapping[LedgerId, Decision]:
    """Return the valid accepted losses that name one of ``bookies``, by ledger.

    Raises:
        NotAClusterError, StoreUnavailableError: no answer.
    """
    decisions = Decisions(client.store, client.cluster.root)
    return await valid_accepted_losses(decisions, client.ports.registrations, bookies)


async def remaining_data_on(client: ClusterClient, bookies: Sequence[BookieId], counting: Counting = silent) -> Left:
    """Read all ledgers once, and return the data on ``bookies``.

    Raises:
        NotAClusterError, StoreUnavailableError: no answer.
    """
    accepted = await accepted_losses_on(client, bookies)
    with counting("ledgers", await count(client.ports.ledgers)) as advance:
        holdings, scanned = await holdings_of(client.ports.ledgers, bookies, advance, accepted)
    return await judge(holdings, scanned, client.ports.tasks, client.parked)


async def observe_drains(
    client: ClusterClient,
    bookies: Sequence[BookieId],
    drains: Mapping[BookieId, Drain],
    left: Left,
    ledgers_per_s: float | None = None,
    not_drained: Sequence[BookieId] = (),
) -> DrainObservation:
    """Return the data left, with the state of the bookies and of recovery. Raises StoreUnavailableError."""
    registered = await client.ports.registrations.list()
    return DrainObservation(
        {bookie: drains.get(bookie, Drain(bookie)) for bookie in bookies},
        {bookie: registered_as(bookie, registered) for bookie in bookies},
        left,
        not await client.ports.tasks.switches.is_disabled(),
        ledgers_per_s,
        tuple(not_drained),
    )


async def drain_status(client: ClusterClient, bookies: Sequence[BookieId]) -> Document:
    """Return the status of the drains of ``bookies``, or of all drained ones if none is named; without a rate.

    Raises:
        NoSuchObjectError: a name is neither a bookie nor drained, and no ledger names it.
        NotAClusterError, StoreUnavailableError: no answer.
    """
    drains = await Drains(client.store, client.cluster.root).read()
    chosen = tuple(bookies) or tuple(sorted(drains))
    await check_names_or_in_ledgers(client, [bookie for bookie in chosen if bookie not in drains])
    left = await remaining_data_on(client, chosen) if chosen else Left(HeldLedgers(), LedgerScanResult())
    return status_document(await observe_drains(client, chosen, drains, left))


def status_document(seen: DrainObservation) -> dict[str, Any]:
    """Return the document ``DrainStatus``. Pure."""
    left = seen.left
    return {
        "bookies": [
            {
                "bookie_id": bookie,
                "since": rfc3339_if_known(drain.since_ms, "seconds"),
                "by": drain.by,
                "state": seen.states[bookie],
            }
            for bookie, drain in seen.drains.items()
        ],
        "ledgers_left": len(left.holdings.ledgers),
        "bytes_left": left.holdings.bytes,
        "moving": left.moving,
        "unmarked": len(left.unmarked),
        "unreadable_marks": left.unreadable_marks,
        "accepted_ledgers": len(left.holdings.accepted),
        "parked": dict(left.parked),
        "examples": [
            {"ledger_id": record.ledger_id, "reason": record.reason.value, "detail": record.detail}
            for record in left.examples
        ],
        "open_ledgers": len(left.holdings.unclosed),
        "open_topics": sorted(left.holdings.open_topics)[:TOPICS_SHOWN_MAX],
        "unreadable_ledgers": left.scanned.unreadable_count,
        "ledgers_read": left.scanned.ledgers,
        "recovery_enabled": seen.is_enabled,
        "ledgers_per_second": seen.ledgers_per_s,
        "eta_seconds": seen.eta_s,
    }
