"""Recovery: fence a ledger against its writer, find its end, make its tail durable, and close it.

The invariant: the closed ledger contains every acknowledged entry (I3), and nothing is acknowledged beyond its end
(I2). Any number of recoveries may run concurrently, even while the writer lives: the first closing change decides the
end, and all others accept it (I4). The order of the steps is the safety argument:

1. The state becomes IN_RECOVERY: the writer can change neither its ensemble nor the state any more.
2. The last ensemble is fenced until fewer than ``Qa`` members of any write set could still accept an add (T14).
3. Entries are read from the last add confirmed on. Explicit denials from enough members prove the end. Other answers
   prove nothing, and without a proof the recovery stops.
4. The entries found are stored again on ``Qa`` members or more. New members stay in memory: if the metadata named them
   now, another recovery would read from bookies that lack the entries, and would cut off the end.
5. Members not known to have all entries are marked for repair, because only this process has this information. The mark
   is repeated after the close: a worker may have completed the task while the ledger was open.
6. If the disks of a member of the last ensemble have changed since step 2, the recovery starts again: the new disks may
   have no fence, and may have accepted adds of the writer (R132).
   The metadata is read again before that: if the ledger was deleted and another one has its id, the recovery ends
   (R170).
7. One transaction stores the end, the length and the new members, if the last fragment is still that of step 1 and the
   disks of the new members have not changed since they were asked (R30).

A crash before step 7 leaves the ledger in recovery and fenced, perhaps with more copies than before. Another recovery
starts again from step 1. Bookies that the closed metadata does not name delete their copies in a collection.

Sources: docs/formats.md#recovery, docs/failure-model.md#recovery-rules; I rules are defined in docs/invariants.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from bookie.client.access import LedgerAccess, ledger_access
from bookie.client.errors import ConfirmedEntryUnreadableError, RecoveryNotPossibleError
from bookie.client.held_entries import HeldEntriesReader
from bookie.client.marks import mark_incomplete
from bookie.client.ports import ClientPorts
from bookie.client.recovery.close import TailChangedError, begin_recovery, close_at, current_ledger, read_again
from bookie.client.recovery.fence import fence_last_ensemble, verify_key_with_bookie
from bookie.client.recovery.read import RecoveryReader
from bookie.client.recovery.tail import LedgerTail
from bookie.client.recovery.write import RecoveryWriter
from bookie.metadata.ledgers.ledgers import Versioned
from bookie.metadata.port import Check
from bookie.model.holdings import holds_all, placed_entries
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import LedgerMetadata
from bookie.runtime.fault_points import fault_point
from bookie.runtime.retry import Backoff, retry_transient
from bookie.wire.port import Status

_log: Final = logging.getLogger(__name__)

_STORE_RETRIES: Final = Backoff(attempts=4)
_AT_A_TIME: Final = 32
"""Maximum number of concurrent listings: the metadata of an old ledger may name many bookies."""
_READ_BYTES_MAX: Final = 8 << 20
_READ_ENTRIES_MAX: Final = 4096
"""A ledger up to this size is read if it cannot be listed, which takes about a second per bookie."""


async def recover_ledger(ports: ClientPorts, ledger_id: LedgerId, password: bytes | None = None) -> Versioned:
    """Fence, recover and close a ledger; a closed one is not changed. Idempotent, and safe to run concurrently.

    No acknowledged entry is lost, and nothing is acknowledged to the old writer after the call returns. It decides
    permanently whether entries in flight are part of the ledger. Bookies without a copy are marked for repair.

    Args:
        ports: see ``ClientPorts``.
        ledger_id: the ledger to recover.
        password: the password of the ledger; None for the stored one (administration).

    Returns:
        The closed ledger.

    Raises:
        NoSuchLedgerError: it does not exist, or was deleted during the recovery.
        WrongPasswordError: the password is not the one in the metadata, or a bookie refuses its key. Nothing was
            changed, unless the metadata is wrong or ``verify_key_with_bookie`` could not detect it: then the ledger
            stays in recovery, and a bookie without entries of it may keep the wrong key.
        UnreadableMetadataError: its metadata cannot be read, or is impossible.
        RecoveryNotPossibleError: too few bookies answer to determine the end, or to store it on ``Qa`` of them; the
            ledger stays in recovery.
        StoreUnavailableError: no answer from the metadata store; recover it again. Also if the outcome of the mark for
            repair before the close is unknown or a conflict.
        WriteOutcomeUnknownError: the ledger may have been closed; recover it again to find out.
        MetadataConflictError: the metadata kept changing.
    """
    for _ in range(ports.settings.recovery_restarts_max):
        ledger = await current_ledger(ports, ledger_id)
        access = ledger_access(ledger, password)
        if not ledger.metadata.is_closed:
            await verify_key_with_bookie(ports, ledger, access)
            ledger = await begin_recovery(ports, ledger)
        if ledger.metadata.is_closed:
            return ledger
        try:
            return await _Recovery(ports, ledger, access).run()
        except TailChangedError as error:
            _log.info("recovery starts again", extra={"ledger_id": ledger_id, "reason": str(error)})
    raise RecoveryNotPossibleError(ledger_id, "its last ensemble keeps changing")


class _Recovery:
    """One attempt of a recovery, for one state of the last ensemble."""

    def __init__(self, ports: ClientPorts, ledger: Versioned, access: LedgerAccess) -> None:
        self._ports = ports
        self._ledger = ledger
        self._access = access
        self._tail = LedgerTail(ledger)
        self._writer = RecoveryWriter(ports, self._tail, access)

    async def run(self) -> Versioned:
        members = sorted(set(self._ledger.metadata.last_fragment.members))
        disks = await self._ports.registrations.disks(members)
        fenced = await fence_last_ensemble(self._ports, self._ledger, self._access)
        last, length = await self._recover_entries(fenced.last_add_confirmed, fenced.length)
        if length is None:
            length = await self._length_through(last)
        checks = await self._spare_checks()
        incomplete = await self._incomplete(self._tail.closed(self._ledger.metadata, last, length))
        await self._mark(incomplete)  # before the close: after it, no other process has this information
        await self._read_again()  # another ledger may have the id and the version
        await self._ensure_same_disks(disks)
        stored, is_ours = await close_at(self._ports, self._ledger, self._tail.closed, last, length, checks)
        extra = {"ledger_id": stored.ledger_id, "last_entry_id": stored.metadata.last_entry_id, "is_ours": is_ours}
        _log.info("ledger recovered", extra=extra)
        await self._mark(incomplete)  # again: a worker may have completed the task while the ledger was open
        return stored

    async def _recover_entries(self, last: EntryId, length: int | None) -> tuple[EntryId, int | None]:
        """Store every entry after ``last`` again; return the last entry of the ledger, and its length if known."""
        fragment = self._ledger.metadata.last_fragment
        reader = RecoveryReader(self._ports, self._ledger, fragment, self._access, is_fencing=True, is_confirmed=False)
        is_end = False
        while not is_end:
            ahead = 1 if fault_point("recovery.read_one_at_a_time") else self._ports.settings.recovery_read_entries
            block = await reader.read(EntryId(last + 1), ahead)
            if block.found:
                await self._writer.store(block.found)
                last, length = block.found[-1].entry.entry_id, block.found[-1].entry.length
            is_end = block.is_end
        return last, length

    async def _length_through(self, entry_id: EntryId) -> int:
        """Return the payload bytes up to a confirmed entry, from its header, in whichever fragment the entry is."""
        for is_last_try in (False, True):
            metadata = self._ledger.metadata
            fragment = metadata.fragments[metadata.fragment_index(entry_id)]
            reader = RecoveryReader(
                self._ports, self._ledger, fragment, self._access, is_fencing=False, is_confirmed=True
            )
            try:
                [found] = (await reader.read(entry_id, 1)).found
            except RecoveryNotPossibleError as error:
                if is_last_try:
                    ledger_id = self._ledger.ledger_id
                    raise ConfirmedEntryUnreadableError(ledger_id, entry_id, error.evidence) from error
            else:
                return found.entry.length
            # Repair may have moved the copies to other bookies; the last fragment is checked by the close.
            await self._read_again()
        raise AssertionError("unreachable: the loop returns or raises")

    async def _read_again(self) -> None:
        ports = self._ports
        read = partial(read_again, ports, self._ledger)
        self._ledger = await retry_transient(read, _STORE_RETRIES, ports.clock, ports.rng)

    async def _spare_checks(self) -> list[Check]:
        """Return checks for the close: each spare still has the disks whose entries are listed next.

        A bookie with new disks searches the metadata once for the ledgers of its old ones. If a spare did so before the
        metadata names it, the lack of its copies would remain unnoticed.
        """
        spares = sorted(self._tail.spares)
        if not spares:
            return []
        return [latest.check for latest in (await self._ports.registrations.latest_disks(spares)).values()]

    async def _ensure_same_disks(self, disks: Mapping[BookieId, int]) -> None:
        """Raise ``TailChangedError`` if a member has got other disks since it was fenced.

        No transaction can check this: a cookie that was deleted and created again has its former version. So this is
        the last request before the close of the ledger.
        """
        changed = [
            each for each, at in (await self._ports.registrations.disks(list(disks))).items() if at != disks[each]
        ]
        if changed:
            raise TailChangedError(f"other disks since the ledger was fenced: {', '.join(changed)}")

    async def _incomplete(self, sealed: LedgerMetadata | None) -> list[BookieId]:
        """Return the members not known to hold every entry placed on them.

        The writer may have died before some member got a confirmed entry, and no other process has this information.
        """
        if sealed is None:
            return []
        return sorted(self._writer.incomplete | await _incomplete_members(self._ports, self._ledger.ledger_id, sealed))

    async def _mark(self, incomplete: Sequence[BookieId]) -> None:
        ports, ledger_id = self._ports, self._ledger.ledger_id
        await retry_transient(
            lambda: mark_incomplete(ports, ledger_id, incomplete), _STORE_RETRIES, ports.clock, ports.rng
        )


async def _incomplete_members(ports: ClientPorts, ledger_id: LedgerId, sealed: LedgerMetadata) -> set[BookieId]:
    """Return the bookies not known to hold every entry that the closed metadata ``sealed`` places on them.

    They include bookies that do not answer: a mark is a hint, and its worker asks again.
    """
    slots = asyncio.Semaphore(_AT_A_TIME)
    asking = HeldEntriesReader(ports.transport, ports.clock, ports.settings.read_timeout_s)
    is_small = _is_small_ledger(sealed)

    async def lacks(bookie: BookieId) -> bool:
        async with slots:
            reply = await asking.listed(bookie, ledger_id)
            if reply.status is Status.UNSUPPORTED and is_small:
                reply = await asking.probed(bookie, ledger_id, placed_entries(sealed, bookie))
        is_answered = reply.status is Status.OK or reply.status.is_absent
        return not is_answered or not holds_all(sealed, bookie, reply.entries)

    members = sorted(sealed.members())
    verdicts = await asyncio.gather(*(lacks(bookie) for bookie in members))
    return {bookie for bookie, is_incomplete in zip(members, verdicts, strict=True) if is_incomplete}


def _is_small_ledger(sealed: LedgerMetadata) -> bool:
    last, length = sealed.last_entry_id, sealed.length
    return last is not None and length is not None and last < _READ_ENTRIES_MAX and length <= _READ_BYTES_MAX
