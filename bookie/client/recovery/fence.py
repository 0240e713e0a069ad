"""The fencing of the last ensemble, and the last add confirmed that its bookies report.

Source: docs/formats.md#coverage, #recovery steps 2 and 3.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from bookie.client.access import LedgerAccess
from bookie.client.errors import RecoveryNotPossibleError, WrongPasswordError
from bookie.client.ports import ClientPorts
from bookie.metadata.ledgers.ledgers import Versioned
from bookie.model.coverage import is_covered
from bookie.model.digest import Digest
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import LedgerState
from bookie.model.packet import DamagedEntry, Entry, unpack
from bookie.runtime.fault_points import fault_point
from bookie.runtime.tasks import cancel_all, guarded
from bookie.wire.port import EntryResult, FenceReply, Status
from bookie.wire.requests import Fence, ReadLast


async def verify_key_with_bookie(ports: ClientPorts, ledger: Versioned, access: LedgerAccess) -> None:
    """Let a bookie check the key of an open ledger whose metadata has no password (format 1); else do nothing.

    Bookies compare keys when they add or fence (docs/formats.md#operations). A bookie without entries of the ledger
    accepts any key, and keeps it as the right one. So the first member of the last fragment that has an entry is
    fenced, and no other. A wrong key has no effect. The right one deposes the writer a moment before the metadata
    changes, which is harmless. Recovery does not rely on this fence, and fences the bookie again.

    A wrong key is not detected if no member that answers has an entry, nor by a bookie that lost the key at a restart,
    as Apache's bookies do with some kinds of storage.

    Raises:
        WrongPasswordError: the bookie has another key for the ledger; nothing was changed anywhere.
    """
    if ledger.metadata.state is not LedgerState.OPEN or ledger.metadata.password is not None:
        return
    timeout_s, ledger_id = ports.settings.read_timeout_s, ledger.ledger_id
    for bookie in ledger.metadata.last_fragment.members:
        last = await ports.transport.ask(bookie, ReadLast(ledger_id), timeout_s)
        if not any(result.status is Status.OK for result in last.results):
            continue
        fenced = await ports.transport.ask(bookie, Fence(ledger_id, access.key), timeout_s)
        if fenced.status is Status.UNAUTHORIZED:
            raise WrongPasswordError(f"ledger {ledger_id}: bookie {bookie} has it with another password")
        return


@dataclass(frozen=True, slots=True)
class FenceResult:
    """The start of the recovery's reads: everything up to ``last_add_confirmed`` is part of the ledger."""

    last_add_confirmed: EntryId
    length: int | None
    """The ledger's payload bytes up to that entry; None if no answer contains them."""


async def fence_last_ensemble(ports: ClientPorts, ledger: Versioned, access: LedgerAccess) -> FenceResult:
    """Fence the members of the last fragment until every write set is covered.

    After that, no entry can be acknowledged to a writer without one of the bookies that answered, and those refuse its
    adds. The last add confirmed is at least the entry before the fragment, which was acknowledged to a writer (#2615).

    Raises:
        RecoveryNotPossibleError: too few bookies answered within ``read_timeout_s``.
        WrongPasswordError: a bookie has another master key for the ledger.
    """
    metadata, timeout_s = ledger.metadata, ports.settings.read_timeout_s
    fragment = metadata.last_fragment
    fence = Fence(ledger.ledger_id, access.key)
    asking = {
        guarded("fence", ports.transport.ask(bookie, fence, timeout_s)): position
        for position, bookie in enumerate(fragment.members)
    }
    last_entries: dict[int, Entry | None] = {}
    """By position, of the fenced members."""
    evidence: dict[BookieId, Status] = {}
    waits_for_all = fault_point("recovery.wait_for_every_fence")
    try:
        waiting = list(asking)
        while waiting and (waits_for_all or not _is_fence_covered(last_entries, ledger)):
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in [task for task in waiting if task in done]:
                waiting.remove(task)
                position = asking[task]
                answer = _last_entry_in(task.result(), access.digest, ledger.ledger_id)
                if isinstance(answer, Status):
                    evidence[fragment.members[position]] = answer
                else:
                    last_entries[position] = answer
    finally:
        await cancel_all(asking)
    if not _is_fence_covered(last_entries, ledger):
        raise RecoveryNotPossibleError(ledger.ledger_id, "too few bookies of its last ensemble answered", evidence)
    return _fenced(fragment.first_entry_id, [entry for entry in last_entries.values() if entry is not None])


def _is_fence_covered(fenced: Collection[int], ledger: Versioned) -> bool:
    """Whether no write set has ``Qa`` positions outside of the fenced ones."""
    metadata = ledger.metadata
    return is_covered(fenced, metadata.stripe, metadata.ack_quorum)


def _last_entry_in(reply: FenceReply, digest: Digest, ledger_id: LedgerId) -> Entry | Status | None:
    """Return the greatest entry of a bookie that is fenced; None if it has none; a status if it may not be fenced."""
    if reply.status is Status.UNAUTHORIZED:
        raise WrongPasswordError(f"ledger {ledger_id}: a bookie has it with another password")
    if fault_point("recovery.early_timeout"):
        return Status.TIMEOUT
    if reply.status is not Status.OK:
        return reply.status  # also "no such ledger", which does not promise that the ledger is fenced there
    if reply.last_entry is None:
        return None
    return decode_last_entry(reply.last_entry, digest, ledger_id)


def decode_last_entry(result: EntryResult, digest: Digest, ledger_id: LedgerId) -> Entry | Status:
    """Decode and verify a bookie's greatest entry; CORRUPT also if its last add confirmed is not before itself."""
    if result.status is not Status.OK:
        return result.status
    try:
        entry = unpack(digest, result.packet, ledger_id, result.entry_id)
    except DamagedEntry:
        return Status.CORRUPT
    return entry if -1 <= entry.last_add_confirmed < entry.entry_id else Status.CORRUPT


def _fenced(first_entry_id: EntryId, entries: Sequence[Entry]) -> FenceResult:
    """Return the greatest last add confirmed in ``entries``, with the length if one of them shows it."""
    confirmed = max([first_entry_id - 1, *(entry.last_add_confirmed for entry in entries)])
    if confirmed < 0:
        return FenceResult(EntryId(-1), 0)
    for entry in entries:
        if entry.entry_id == confirmed:
            return FenceResult(EntryId(confirmed), entry.length)
        if entry.entry_id == confirmed + 1:
            return FenceResult(EntryId(confirmed), entry.length - len(entry.payload))
    return FenceResult(EntryId(confirmed), None)
