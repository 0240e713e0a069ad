"""Copies that registered bookies lack: metadata cannot show them, but writers mark their ledgers.

If a bookie is stopped during a write, it misses the entries with an ack quorum of other bookies. Its fragment still
names it, so after its return the fragment looks healthy. The writer marks the ledger for this reason, so the tour
requests lists of entries from the bookies that such marks name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from auditor.quickstart.proof import ProofFailedError
from auditor.quickstart.workload import WrittenLedger
from bookie.client.ports import ClientPorts
from bookie.metadata.ledgers.ledgers import Versioned
from bookie.model.holdings import fragment_entries
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.wire.port import Status
from bookie.wire.requests import ListEntries

_LIST_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class LedgerShortfall:
    """The copies of one ledger that the registered bookies named by its mark lack."""

    first_entry_ids: frozenset[EntryId]
    """First entries of the fragments that lack copies, never empty."""
    payload_bytes: int


async def recount_shortfalls(ports: ClientPorts, written: Sequence[WrittenLedger]) -> dict[LedgerId, LedgerShortfall]:
    """Count the copies of each closed ledger that the registered bookies named by its task lack, from their lists.

    Ledgers that lack nothing are left out.

    Raises:
        ProofFailedError: a registered bookie does not list its entries.
    """
    named = {task.ledger_id: task.missing for task in await ports.tasks.list()}
    live = (await ports.registrations.list()).registered
    marked = [known for known in written if live & set(named.get(known.ledger_id, ()))]
    found = await ports.ledgers.read_many([known.ledger_id for known in marked])
    shortfalls = {}
    for ledger, known in zip(found, marked, strict=True):
        if isinstance(ledger, Versioned) and ledger.metadata.is_closed:
            members = sorted(live & set(named[known.ledger_id]))
            shortfalls[known.ledger_id] = await _shortfall(ports, ledger, known, members)
    return {ledger_id: shortfall for ledger_id, shortfall in shortfalls.items() if shortfall.first_entry_ids}


async def _shortfall(
    ports: ClientPorts, ledger: Versioned, known: WrittenLedger, members: Sequence[BookieId]
) -> LedgerShortfall:
    held = dict(zip(members, await asyncio.gather(*(_held(ports, ledger, member) for member in members)), strict=True))
    metadata, sizes = ledger.metadata, known.spec.sizes
    first_entry_ids, payload_bytes = set(), 0
    for index, fragment in enumerate(metadata.fragments):
        last = metadata.fragment_last_entry_id(index)
        assert last is not None, "each fragment of a closed ledger has an end"
        for member in members:
            lacking = [
                entry_id for entry_id in fragment_entries(metadata, index, last, member) if entry_id not in held[member]
            ]
            if lacking:
                first_entry_ids.add(fragment.first_entry_id)
                payload_bytes += sum(sizes[entry_id] for entry_id in lacking)
    return LedgerShortfall(frozenset(first_entry_ids), payload_bytes)


async def _held(ports: ClientPorts, ledger: Versioned, member: BookieId) -> set[EntryId]:
    reply = await ports.transport.ask(member, ListEntries(ledger.ledger_id), _LIST_TIMEOUT_S)
    if reply.status is not Status.OK and not reply.status.is_absent:
        raise ProofFailedError(f"{member} does not list ledger {ledger.ledger_id}: {reply.status.name} {reply.detail}")
    return {EntryId(entry_id) for first, last in reply.entries.runs for entry_id in range(first, last + 1)}
