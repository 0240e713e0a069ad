"""Repair positions of an unclosed ledger that need a recovery: wait, check again, fence and close.

The last fragment of an unclosed ledger belongs to its writer and is never copied (S2). If one of its bookies is missing
for the whole grace period, the writer is assumed dead: the ledger is recovered, which closes it, and then repaired like
any other. Recovery is safe even if the writer lives (it is fenced), if another recovery runs, or if the lock is lost
(R36).

Source: docs/formats.md#apache-worker.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import replace
from typing import Final

from bookie.client.errors import ConfirmedEntryUnreadableError, RecoveryNotPossibleError, WrongPasswordError
from bookie.client.ports import ClientPorts
from bookie.client.recovery.recovery import recover_ledger
from bookie.metadata.bookies.registration import Bookies
from bookie.metadata.layout import cookie_path
from bookie.metadata.ledgers.ledgers import NoSuchLedgerError, Versioned
from bookie.metadata.port import Delete
from bookie.metadata.tasks.parked import ParkReason
from bookie.model.coverage import is_covered
from bookie.model.ids import BookieId
from bookie.runtime.fault_points import fault_point
from bookie.wire.port import Status
from replicator.knowledge.doubts import DoubtingTransport, Trust
from replicator.knowledge.holdings import HoldingsReader, growing_members
from replicator.plan.planner import Plan
from replicator.plan.steps import PositionKey
from replicator.ports import RepairPorts
from replicator.queue.grace import GracePeriods
from replicator.repair.lease import Lease
from replicator.repair.turn_findings import TurnFindings

_log = logging.getLogger(__name__)

_LASTING_UNKNOWN_STATUSES: Final = frozenset({Status.LIMBO, Status.CORRUPT, Status.UNAUTHORIZED})
"""Answers that stay the same if the request is repeated."""


class UnclosedLedgerRepair:
    """Recovers an unclosed ledger in one turn of one task."""

    def __init__(
        self,
        ports: RepairPorts,
        lease: Lease,
        grace_periods: GracePeriods,
        holdings: HoldingsReader,
        found: TurnFindings,
    ) -> None:
        self._ports = ports
        self._found = found
        self._holdings = holdings
        self._lease = lease
        self._grace_periods = grace_periods
        self._ledger_id = lease.held.task.ledger_id
        self._doubted: set[BookieId] = set()
        self._hint = ""
        """Added to the reason of a failed recovery: what an operator has to do."""

    async def doubt(self, members: Collection[BookieId]) -> None:
        """Record incomplete members as doubted. No recovery accepts their denials, in this turn or a later one.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: the store did not answer; nothing may be copied in place.
        """
        if not self._doubted.issuperset(members):
            await self._ports.doubts.add(self._ledger_id, members)
            self._doubted.update(members)

    @property
    def has_doubts(self) -> bool:
        """Whether this turn recorded or read doubted members; their record is deleted with the task."""
        return bool(self._doubted)

    async def doubts_deletion(self) -> Delete | None:
        """Return an operation for the completing transaction that deletes the record of doubted members; None if none.

        The record of an open ledger is deleted in the same transaction as the lock, because afterwards another worker
        might lock the ledger and write a new record. For a closed ledger no worker writes a record.

        Raises:
            StoreUnavailableError: the store did not answer.
        """
        return await self._ports.doubts.deletion(self._ledger_id) if self._doubted else None

    def remaining_s(self, plan: Plan, bookies: Bookies) -> float | None:
        """Return the seconds until a recovery is allowed (0 or less: now); None if the ledger needs no recovery."""
        fragments = plan.ledger.metadata.fragments
        keys = [
            PositionKey(fragments[block.fragment_index].first_entry_id, block.position, block.bookie)
            for block in plan.blocked
            if block.reason is ParkReason.NEEDS_RECOVERY
        ]
        if not keys:
            return None
        lost = [key for key in keys if key.bookie not in bookies.registered]
        doubtful = [key for key in keys if key.bookie in bookies.registered]
        remaining_s = self._grace_periods.remaining_s(self._ledger_id, lost, doubtful)
        return min(remaining_s, 0.0) if fault_point("replicator.recover_early") else remaining_s

    async def recover(self, ledger: Versioned, bookies: Bookies) -> bool:
        """Fence and close the ledger if it still equals ``ledger``; return whether another round should follow now.

        Raises:
            NoSuchLedgerError: the ledger was deleted.
            LeaseLostError: the lock is no longer ours; the recovery was not begun.
            TransientError, OutcomeUnknownError: the store did not answer; recovering again is safe.
        """
        current = await self._ports.ledgers.current(self._ledger_id)
        if current is None:
            raise NoSuchLedgerError(f"ledger {self._ledger_id} does not exist")
        if (current.version, current.czxid) != (ledger.version, ledger.czxid):
            return True  # its writer is alive, or another client recovers it
        if ledger.metadata.password is None:  # a fence with a wrong key would exclude clients with the right key
            self._fail(
                "its metadata carries no password: recover it by hand, with the password it was created with",
                is_permanent=True,
            )
            return False
        trust = await self._trust(ledger, bookies)
        await self._lease.ensure_ours()
        try:
            recovered = await recover_ledger(self._client(trust), self._ledger_id)
        except RecoveryNotPossibleError as error:
            self._grace_periods.record_failed_recovery(self._ledger_id, bookies)
            self._fail(f"{error}{self._hint}", is_permanent=not _can_recover_if_all_answer(ledger, bookies, error))
        except WrongPasswordError as error:
            self._fail(str(error), is_permanent=True)
        else:
            self._grace_periods.forget(self._ledger_id)
            self._found.is_recovered = True
            metadata = recovered.metadata
            fields = {"ledger_id": self._ledger_id, "last_entry_id": metadata.last_entry_id, "length": metadata.length}
            _log.info("ledger without a writer recovered and closed", extra=fields)
        return not self._found.recovery_failure

    def _fail(self, why: str, *, is_permanent: bool) -> None:
        self._found.recovery_failure, self._found.is_recovery_failure_permanent = why, is_permanent

    async def _trust(self, ledger: Versioned, bookies: Bookies) -> Trust:
        """Read the registrations of the members, then judge the members (R91)."""
        members = growing_members(ledger.metadata)
        registered = await self._ports.registrations.numbers(members)
        judgement = await self._holdings.judge_members(ledger, bookies, await self._joined_later(members))
        await self.doubt(judgement.lost)
        recorded = await self._ports.doubts.get(self._ledger_id)
        if recorded is None:
            recorded = ledger.metadata.members()
            record = self._ports.doubts.path(self._ledger_id)
            self._hint = (
                f"; the record {record} is damaged, so the answers of no member can be trusted: check the "
                "bookies, then delete it"
            )
        self._doubted.update(recorded)
        trusted = judgement.complete & registered.keys() - self._doubted
        return Trust(members, frozenset(self._doubted), {bookie: registered[bookie] for bookie in trusted})

    async def _joined_later(self, members: Collection[BookieId]) -> frozenset[BookieId]:
        """Return members whose cookie is newer than the ledger: they have other disks, or joined later (R92)."""
        asked = sorted(members)
        root = self._ports.cluster.root
        paths = [self._ports.ledgers.path(self._ledger_id), *(cookie_path(root, bookie) for bookie in asked)]
        ledger, *cookies = await self._ports.store.get_many(paths)
        return frozenset(
            bookie
            for bookie, cookie in zip(asked, cookies, strict=True)
            if ledger is None or cookie is None or cookie.stat.mzxid > ledger.stat.czxid
        )

    def _client(self, trust: Trust) -> ClientPorts:
        ports = self._ports.client()
        transport = DoubtingTransport(ports.transport, trust, ports.registrations.numbers, ports.clock)
        return replace(ports, transport=transport)


def _can_recover_if_all_answer(ledger: Versioned, bookies: Bookies, error: RecoveryNotPossibleError) -> bool:
    """Return whether the registered bookies could determine and store the ledger's end if all of them answered."""
    if isinstance(error, ConfirmedEntryUnreadableError):  # one copy is enough, perhaps on a member of an older fragment
        left = {
            bookie
            for bookie, status in error.evidence.items()
            if not (status in _LASTING_UNKNOWN_STATUSES or status.is_absent)
        }
        return not left.isdisjoint(bookies.registered)
    metadata, evidence = ledger.metadata, error.evidence
    stripe, ack_quorum = metadata.stripe, metadata.ack_quorum
    members = metadata.last_fragment.members
    registered = [position for position, member in enumerate(members) if member in bookies.registered]
    able = [position for position in registered if evidence.get(members[position]) not in _LASTING_UNKNOWN_STATUSES]
    writable = [position for position, member in enumerate(members) if member in bookies.writable]
    has_room = bool(bookies.writable - set(members)) or all(
        len(set(stripe.write_set(start)) & set(writable)) >= ack_quorum for start in range(stripe.ensemble_size)
    )
    return has_room and is_covered(able, stripe, ack_quorum)
