"""The outcome of a run: what a cluster still lacks after all faults have ended, and every copy of every entry."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Final

from bookie.client.bookkeeper import BookKeeper, stored_digest
from bookie.client.connect import ConnectedBookKeeper
from bookie.embedded.cluster import LEDGERS_ROOT
from bookie.metadata.ledgers.ledgers import Versioned
from bookie.metadata.tasks.reservations import Reservations
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.packet import DamagedEntry, unpack
from bookie.wire.port import READ_ENTRIES_MAX, EntryResult, Status
from bookie.wire.requests import Read
from tests.deadlines import STATE_S
from tests.faults.workload import payload
from tests.worlds.ledgers import placed_copies

_SHOWN: Final = 5
_RECONNECT_S: Final = 0.1


async def unfinished(client: ConnectedBookKeeper, destroyed: AbstractSet[BookieId]) -> Sequence[str]:
    """Return one line for each kind of thing that a finished repair leaves none of; an empty list if all is repaired.

    The registration of a bookie of ``destroyed`` may still exist, for example because ZooKeeper was away since then.

    Raises:
        StoreUnavailableError: no answer from the metadata store.
    """
    await client.store.sync(LEDGERS_ROOT)  # the server may lag behind what other processes did
    tasks = client.ports.tasks
    present = (await client.ports.registrations.list()).registered - destroyed
    scanned = [one async for one in client.scan_ledgers()]
    left = {
        "marked": [task.ledger_id for task in await tasks.list()],
        "parked": [task.ledger_id for task in await client.parked.list()],
        "locked": await tasks.locks.locked(),
        "with a reservation": await Reservations(client.store, LEDGERS_ROOT).ledgers(),
        "unreadable": [one.ledger_id for one in scanned if not isinstance(one, Versioned)],
        "with a lost member": [
            one.ledger_id for one in scanned if isinstance(one, Versioned) and not one.metadata.members() <= present
        ],
    }
    return [f"{len(found)} {kind}: {_listed(found)}" for kind, found in left.items() if found]


@dataclass(frozen=True, slots=True)
class CopyFault:
    """A copy of an entry that a bookie should have and does not serve."""

    ledger_id: LedgerId
    entry_id: EntryId
    bookie: BookieId
    what: str
    is_denied: bool = False
    """Whether the bookie answers that it never had the entry."""

    def __str__(self) -> str:
        return f"ledger {self.ledger_id} entry {self.entry_id} on {self.bookie}: {self.what}"


async def faults_of_ledger(client: BookKeeper, ledger_id: LedgerId, acknowledged: int) -> Sequence[str]:
    """Read every copy of a closed ledger from its bookies; return one line for each fault, normally none.

    Args:
        client: a client of the cluster.
        ledger_id: the ledger.
        acknowledged: the number of entries that were acknowledged to its writer.
    """
    ledger = await client.ports.ledgers.read(ledger_id)
    last = ledger.metadata.last_entry_id
    if last is None:
        return [f"ledger {ledger_id} is {ledger.metadata.state.name}, not closed"]
    faults: list[str] = []
    if last + 1 < acknowledged:
        faults.append(f"ledger {ledger_id} ends at {last}, and {acknowledged} were acknowledged")
    for member, stored in placed_copies(ledger.metadata):
        faults += map(str, await faults_of_copies(client, ledger, member, stored))
    return faults


async def faults_of_copies(
    client: BookKeeper, ledger: Versioned, member: BookieId, stored: Sequence[EntryId]
) -> Sequence[CopyFault]:
    """Read entries of a closed ledger from a bookie that should have them; return a fault for each that is not good.

    Raises:
        TimeoutError: the bookie did not answer.
    """
    digest, ledger_id, faults = stored_digest(ledger), ledger.ledger_id, []
    for entry, result in zip(stored, await _entries(client, member, ledger_id, stored), strict=True):
        fault = CopyFault(ledger_id, entry, member, result.status.name, result.status.is_absent)
        if result.status is not Status.OK:
            faults.append(fault)
            continue
        try:
            unpacked = unpack(digest, result.packet, ledger_id, entry)
        except DamagedEntry as damage:
            faults.append(replace(fault, what=str(damage)))
            continue
        if unpacked.payload != payload(ledger_id, entry):
            faults.append(replace(fault, what="other bytes than were written"))
    return faults


async def _entries(
    client: BookKeeper, bookie: BookieId, ledger_id: LedgerId, entries: Sequence[EntryId]
) -> Sequence[EntryResult]:
    results: list[EntryResult] = []
    async with asyncio.timeout(STATE_S):
        while len(results) < len(entries):
            rest = entries[len(results) : len(results) + READ_ENTRIES_MAX]
            reply = await client.ports.transport.ask(bookie, Read(ledger_id, rest), STATE_S)
            if reply.status is Status.UNREACHABLE:  # it was restarted, and is not connected again yet
                await asyncio.sleep(_RECONNECT_S)
                continue
            results += reply.results
            if reply.status is not Status.OK:  # it cannot answer for the rest, for example with a damaged index
                results += [EntryResult(entry, reply.status) for entry in entries[len(results) :]]
    return results


def _listed(ledger_ids: Collection[LedgerId]) -> str:
    shown = sorted(ledger_ids)[:_SHOWN]
    return ", ".join(map(str, shown)) + (", ..." if len(ledger_ids) > _SHOWN else "")
