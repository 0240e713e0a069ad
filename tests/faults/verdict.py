"""The outcome of a run: what a cluster still lacks after all faults have ended, and every copy of every entry."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from collections.abc import Set as AbstractSet
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


async def faults_of_ledger(client: BookKeeper, ledger_id: LedgerId, acknowledged: int) -> Sequence[str]:
    """Read every copy of a closed ledger from its bookies; return one line for each fault, normally none.

    Args:
        client: a client of the cluster.
        ledger_id: the ledger.
        acknowledged: the number of entries that were acknowledged to its writer.
    """
    ledger = await client.ports.ledgers.read(ledger_id)
    metadata, digest = ledger.metadata, stored_digest(ledger)
    if metadata.last_entry_id is None:
        return [f"ledger {ledger_id} is {metadata.state.name}, not closed"]
    faults: list[str] = []
    if metadata.last_entry_id + 1 < acknowledged:
        faults.append(f"ledger {ledger_id} ends at {metadata.last_entry_id}, and {acknowledged} were acknowledged")
    for member, stored in placed_copies(metadata):
        for entry, result in zip(stored, await _entries(client, member, ledger_id, stored), strict=True):
            what = f"ledger {ledger_id} entry {entry} on {member}"
            if result.status is not Status.OK:
                faults.append(f"{what}: {result.status.name}")
                continue
            try:
                unpacked = unpack(digest, result.packet, ledger_id, entry)
            except DamagedEntry as damage:
                faults.append(f"{what}: {damage}")
                continue
            if unpacked.payload != payload(ledger_id, entry):
                faults.append(f"{what}: other bytes than were written")
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
            assert reply.status is Status.OK, reply
            results += reply.results
    return results


def _listed(ledger_ids: Collection[LedgerId]) -> str:
    shown = sorted(ledger_ids)[:_SHOWN]
    return ", ".join(map(str, shown)) + (", ..." if len(ledger_ids) > _SHOWN else "")
