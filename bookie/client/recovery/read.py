"""The forward reads of a recovery, which fence every bookie that is asked (docs/formats.md#recovery step 4; #2614).

All of them use one ensemble: the last one as it was when the recovery began. Entries are read ahead, and judged one
after another in order, so the outcome is the same as for single reads.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bookie.client.access import LedgerAccess
from bookie.client.errors import RecoveryNotPossibleError, WrongPasswordError
from bookie.client.ports import ClientPorts
from bookie.client.recovery.votes import EntryVerdict, FoundEntry, Votes
from bookie.metadata.ledgers.ledgers import Versioned
from bookie.model.coverage import negative_quorum
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import Fragment
from bookie.model.packet import DamagedEntry, unpack
from bookie.runtime.fault_points import fault_point
from bookie.runtime.tasks import cancel_all, guarded
from bookie.wire.port import ReadReply, Status
from bookie.wire.requests import Read


@dataclass(frozen=True, slots=True)
class ConsecutiveEntries:
    """Consecutive existing entries, and whether the next one is proved absent."""

    found: list[FoundEntry]
    is_end: bool


class RecoveryReader:
    """Reads the entries of one fragment, each from as many members as the decision needs."""

    def __init__(
        self,
        ports: ClientPorts,
        ledger: Versioned,
        fragment: Fragment,
        access: LedgerAccess,
        *,
        is_fencing: bool,
        is_confirmed: bool,
    ) -> None:
        """Prepare reads with or without a fence. A denial of a confirmed entry proves a lost copy, not its absence."""
        self._ports = ports
        self._ledger_id: LedgerId = ledger.ledger_id
        self._metadata = ledger.metadata
        self._members = fragment.members
        self._access = access
        self._fence_key = access.key if is_fencing else None
        self._is_confirmed = is_confirmed
        self._suspects: set[int] = set()
        """Positions with slow answers, which are asked after the others."""

    async def read(self, first: EntryId, count: int) -> ConsecutiveEntries:
        """Read ``first`` and up to ``count - 1`` entries after it; fewer if they are large.

        At least one is decided.

        Raises:
            RecoveryNotPossibleError: the answers show neither that the next entry exists nor that it is absent.
            WrongPasswordError: a bookie has another master key for the ledger.
        """
        return await _Round(self, first, count).run()

    async def ask(self, position: int, entry_ids: Sequence[EntryId]) -> list[FoundEntry | Status]:
        """Return one member's answers for a prefix of ``entry_ids``; if it fails, for all of them."""
        read = Read(self._ledger_id, entry_ids, self._fence_key)
        timeout_s = self._ports.settings.read_timeout_s
        reply = await self._ports.transport.ask(self._members[position], read, timeout_s)
        if fault_point("recovery.early_timeout"):
            reply = ReadReply(Status.TIMEOUT)
        outcomes = [
            self._judged(entry_id, result.entry_id, result.status, result.packet)
            for entry_id, result in zip(entry_ids, reply.results, strict=False)
        ]
        if reply.status is not Status.OK or not outcomes:
            # "Absent" is a proof only for a single entry. For a whole request it is a failure like any other.
            is_failure = reply.status is not Status.OK and not reply.status.is_absent
            failure = reply.status if is_failure else Status.IO_ERROR
            outcomes.extend(failure for _ in entry_ids[len(outcomes) :])
        return outcomes

    def votes(self, entry_id: EntryId) -> Votes:
        """Return a new count of the answers for one entry."""
        metadata = self._metadata
        positions = metadata.stripe.write_set(entry_id)
        needed = negative_quorum(metadata.write_quorum, metadata.ack_quorum)
        return Votes(positions, len(positions) + 1 if self._is_confirmed else needed)

    def _judged(self, asked: EntryId, answered: EntryId, status: Status, packet: bytes) -> FoundEntry | Status:
        if answered != asked:
            return Status.IO_ERROR
        if status is not Status.OK:
            return status
        try:
            return FoundEntry(unpack(self._access.digest, packet, self._ledger_id, asked), packet)
        except DamagedEntry:
            return Status.CORRUPT

    @property
    def suspects(self) -> set[int]:
        """Positions to ask last."""
        return self._suspects

    @property
    def patience_s(self) -> float:
        """The time in seconds after which the next member is asked as well."""
        return self._ports.settings.speculative_after_s

    def wrong_password_error(self, position: int) -> WrongPasswordError:
        """Return the error for a member with another master key."""
        bookie = self._members[position]
        return WrongPasswordError(f"ledger {self._ledger_id}: bookie {bookie} has it with another password")

    def undecided(self, entry_id: EntryId, votes: Votes) -> RecoveryNotPossibleError:
        """Return the error for an entry whose answers prove nothing."""
        evidence: dict[BookieId, Status] = {
            self._members[position]: status for position, status in votes.evidence.items()
        }
        why = f"whether entry {entry_id} is part of it is unknown"
        return RecoveryNotPossibleError(self._ledger_id, why, evidence)


_Asking = asyncio.Task[list[FoundEntry | Status]]


class _Round:
    """One read-ahead."""

    def __init__(self, reader: RecoveryReader, first: EntryId, count: int) -> None:
        self._reader = reader
        self._votes = {EntryId(entry_id): reader.votes(EntryId(entry_id)) for entry_id in range(first, first + count)}
        self._next = first
        self._end = first + count
        """Exclusive; decreases if an answer is too large for the whole request."""
        self._found: list[FoundEntry] = []
        self._asking: dict[_Asking, tuple[int, list[EntryId]]] = {}

    async def run(self) -> ConsecutiveEntries:
        try:
            self._ask(self._votes)
            while True:
                verdict = self._advance()
                if verdict is not EntryVerdict.WAITING:
                    return ConsecutiveEntries(self._found, verdict is EntryVerdict.ABSENT)
                await self._wait()
        finally:
            await cancel_all(self._asking)

    def _advance(self) -> EntryVerdict:
        """Collect the found entries in order; return FOUND after all requested ones are found."""
        while self._next < self._end:
            votes = self._votes[self._next]
            verdict = votes.verdict
            if verdict is EntryVerdict.UNKNOWN and self._found:
                return EntryVerdict.FOUND  # the entries before it are certain, and the caller asks again for the rest
            if verdict is EntryVerdict.UNKNOWN:
                raise self._reader.undecided(self._next, votes)
            if verdict is not EntryVerdict.FOUND:
                return verdict
            assert votes.found is not None
            self._found.append(votes.found)
            self._next = EntryId(self._next + 1)
        return EntryVerdict.FOUND

    async def _wait(self) -> None:
        done, _ = await asyncio.wait(self._asking, timeout=self._reader.patience_s, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            self._reader.suspects.update(position for position, _ in self._asking.values())
            self._ask(self._undecided_entry_ids())
            return
        for task in [task for task in self._asking if task in done]:
            position, entry_ids = self._asking.pop(task)
            self._count(position, entry_ids, task.result())
        self._ask(entry_id for entry_id in self._undecided_entry_ids() if not self._votes[entry_id].is_awaiting_answer)

    def _count(self, position: int, entry_ids: list[EntryId], outcomes: list[FoundEntry | Status]) -> None:
        if Status.UNAUTHORIZED in outcomes:
            raise self._reader.wrong_password_error(position)
        for entry_id, outcome in zip(entry_ids, outcomes, strict=False):
            self._votes[entry_id].answer(position, outcome)
            if outcome in (Status.TIMEOUT, Status.UNREACHABLE, Status.UNRESOLVED):
                self._reader.suspects.add(position)
        if len(outcomes) < len(entry_ids):
            self._end = min(self._end, entry_ids[len(outcomes)])

    def _undecided_entry_ids(self) -> list[EntryId]:
        return [
            entry_id
            for entry_id in map(EntryId, range(self._next, self._end))
            if self._votes[entry_id].verdict is EntryVerdict.WAITING
        ]

    def _ask(self, entry_ids: Iterable[EntryId]) -> None:
        """Ask one more member for each of the entries, with one request to each member."""
        by_position: dict[int, list[EntryId]] = defaultdict(list)
        for entry_id in entry_ids:
            position = self._votes[entry_id].take_next_position(self._reader.suspects)
            if position is not None:
                by_position[position].append(entry_id)
        for position, ids in by_position.items():
            self._asking[guarded("recovery read", self._reader.ask(position, ids))] = (position, ids)
