"""The entries of the bookies of a simulated cluster, and the plain reference for a replicas check.

A bookie holds every entry of every ledger, except those that the history took from it: what a bookie has beyond its
positions makes no difference to this check. The reference looks at each entry by itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Final

from typing_extensions import override

from bookie.metadata.tasks.decisions import Decision
from bookie.model.availability import EntryRuns
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import LedgerMetadata
from bookie.model.severity import Severity
from bookie.wire.port import AddBatch, AddReply, EntryResult, ListReply, ReadReply, ReplyT, Request, Status, Transport
from bookie.wire.requests import ListEntries, Read
from tests.worlds.ledgers import make_packets

ENTRIES: Final = 48
"""Number of entries that a bookie may have of a ledger."""
Copy = tuple[BookieId, LedgerId]


@dataclass(slots=True)
class HeldEntries:
    """What the history took from the bookies.

    Attributes:
        absent: entries that a bookie never got, or lost.
        damaged: entries whose bytes are damaged.
        answers: bookies that answer nothing else.
        apache: bookies that list nothing.
        ever: every copy that lacked something since the last call of ``begin``.
    """

    absent: dict[Copy, set[int]] = field(default_factory=dict)
    damaged: dict[Copy, set[int]] = field(default_factory=dict)
    answers: dict[BookieId, Status] = field(default_factory=dict)
    apache: set[BookieId] = field(default_factory=set)
    ever: set[Copy] = field(default_factory=set)

    def begin(self) -> None:
        """Record from now on."""
        self.ever = {*self.absent, *self.damaged}

    def take(self, copy: Copy, entries: AbstractSet[int], *, is_damage: bool) -> None:
        """Take entries from a bookie."""
        self.ever.add(copy)
        (self.damaged if is_damage else self.absent).setdefault(copy, set()).update(entries)

    def restore(self, ledger_id: LedgerId, bookie: BookieId | None = None) -> None:
        """Complete a ledger, on all bookies or on one."""
        for taken in (self.absent, self.damaged):
            for copy in [each for each in taken if each[1] == ledger_id and bookie in (None, each[0])]:
                del taken[copy]

    def lacks(self, copy: Copy) -> AbstractSet[int]:
        return self.absent.get(copy, set()) | self.damaged.get(copy, set())


class HeldEntriesTransport(Transport):
    """Requests to the bookies of a simulated cluster."""

    def __init__(self, held: HeldEntries, registered: Callable[[], AbstractSet[BookieId]]) -> None:
        self._held = held
        self._registered = registered

    @override
    async def add(self, bookie: BookieId, batch: AddBatch, timeout_s: float) -> AddReply:
        raise AssertionError("an audit adds no entries")

    @override
    async def ask(self, bookie: BookieId, request: Request[ReplyT], timeout_s: float) -> ReplyT:
        if bookie not in self._registered():
            return request.failed(Status.UNRESOLVED, detail="not registered")
        answer: Any
        if isinstance(request, ListEntries):
            answer = self._list(bookie, request.ledger_id)
        else:
            assert isinstance(request, Read)
            answer = self._read(bookie, request.ledger_id, request.entry_ids)
        return answer  # type: ignore[no-any-return]

    @override
    async def close(self) -> None:
        pass

    def _list(self, bookie: BookieId, ledger_id: LedgerId) -> ListReply:
        if bookie in self._held.apache:
            return ListReply(Status.UNSUPPORTED)
        copy = bookie, ledger_id
        entries = EntryRuns.of(each for each in range(ENTRIES) if each not in self._held.lacks(copy))
        if (status := self._held.answers.get(bookie)) is not None:
            return ListReply(status, entries if status is Status.LIMBO else EntryRuns(()))
        if copy in self._held.damaged:
            return ListReply(Status.CORRUPT, entries)
        return ListReply(Status.OK if entries else Status.NO_LEDGER, entries)

    def _read(self, bookie: BookieId, ledger_id: LedgerId, entry_ids: Sequence[EntryId]) -> ReadReply:
        if (status := self._held.answers.get(bookie)) is not None:
            return ReadReply(status)
        copy, packets = (bookie, ledger_id), make_packets(ledger_id, max(entry_ids) + 1)
        damaged, absent = self._held.damaged.get(copy, set()), self._held.absent.get(copy, set())
        results = [
            EntryResult(each, Status.IO_ERROR)
            if each in damaged
            else EntryResult(each, Status.NO_ENTRY)
            if each in absent
            else EntryResult(each, Status.OK, packets[each])
            for each in entry_ids
        ]
        return ReadReply(Status.OK, results)


@dataclass(frozen=True, slots=True)
class LackingEntries:
    """A fragment of which bookies lack entries."""

    number: int
    positions: tuple[int, ...]
    missing: frozenset[BookieId]
    severity: Severity
    absent: int
    is_damaged: bool


@dataclass(frozen=True, slots=True)
class ReplicaJudge:
    """The bookies when a check asks them."""

    held: HeldEntries
    registered: AbstractSet[BookieId]

    def is_accepted(
        self, metadata: LedgerMetadata, ledger_id: LedgerId, found: LackingEntries, accepted: Decision | None
    ) -> bool:
        """Return whether an operator accepted the loss of every entry that is missing in a fragment."""
        if accepted is None or accepted.ledger_ctime_ms not in (None, metadata.ctime_ms):
            return False
        fragment = metadata.fragments[found.number]
        for loss in accepted.lost:
            if loss.first_entry_id != fragment.first_entry_id:
                continue
            named = set(zip(loss.positions, loss.bookies, strict=True))
            named |= {(denial.position, denial.bookie) for denial in loss.denials}
            if not loss.entries:
                denied = [denial for denial in loss.denials if denial.position in found.positions]
                return (
                    {denial.position for denial in denied} == set(found.positions)
                    and found.missing <= {denial.bookie for denial in denied}
                    and found.absent <= sum(denial.entries for denial in denied)
                )
            return {(each, fragment.members[each]) for each in found.positions} <= named and all(
                entry in loss.lost_entries and not self._is_listed(metadata, ledger_id, found.number, entry)
                for entry in self._entries_lacking(metadata, ledger_id, found.number)
            )
        return False

    def _entries_lacking(self, metadata: LedgerMetadata, ledger_id: LedgerId, number: int) -> Iterator[int]:
        members = metadata.fragments[number].members
        for entry in dict(settled(metadata))[number]:
            holders = {members[each] for each in _write_set(metadata, entry)}
            if any(entry in self._lacks(metadata, ledger_id, member)[0] for member in holders):
                yield entry

    def _is_listed(self, metadata: LedgerMetadata, ledger_id: LedgerId, number: int, entry: int) -> bool:
        members = metadata.fragments[number].members
        return any(
            member in self.registered
            and member not in self.held.apache
            and self.held.answers.get(member) in (None, Status.LIMBO)
            and entry not in self.held.lacks((member, ledger_id))
            for member in (members[each] for each in _write_set(metadata, entry))
        )

    def lacking(self, metadata: LedgerMetadata, ledger_id: LedgerId) -> Iterator[LackingEntries]:
        """Yield each settled fragment of which a bookie lacks entries."""
        for number, entries in settled(metadata):
            if (found := self._fragment(metadata, ledger_id, number, entries)) is not None:
                yield found

    def unknown(self, metadata: LedgerMetadata, ledger_id: LedgerId) -> frozenset[BookieId]:
        """Return the registered bookies that leave it unknown whether they have all of their entries."""
        wanted: defaultdict[BookieId, set[int]] = defaultdict(set)
        for number, entries in settled(metadata):
            for entry in entries:
                for position in _write_set(metadata, entry):
                    wanted[metadata.fragments[number].members[position]].add(entry)
        return frozenset(
            bookie
            for bookie, entries in wanted.items()
            if bookie in self.registered and self._is_unknown(metadata, ledger_id, bookie, entries)
        )

    def _is_unknown(
        self, metadata: LedgerMetadata, ledger_id: LedgerId, bookie: BookieId, wanted: AbstractSet[int]
    ) -> bool:
        status = self.held.answers.get(bookie)
        if status is Status.LIMBO and bookie not in self.held.apache:
            return bool(wanted & self.held.lacks((bookie, ledger_id)))
        if status is not None:
            return True
        if bookie not in self.held.apache or metadata.is_closed:
            return False
        sample = self._sample(metadata, bookie)
        return bool(sample & self.held.damaged.get((bookie, ledger_id), set()))

    def _sample(self, metadata: LedgerMetadata, bookie: BookieId) -> AbstractSet[int]:
        """Return the first and the last entry of each position of a bookie."""
        found: set[int] = set()
        for number, entries in settled(metadata):
            for position, member in enumerate(metadata.fragments[number].members):
                if member == bookie:
                    of_position = [each for each in entries if position in _write_set(metadata, each)]
                    found.update(of_position[:1], of_position[-1:])
        return found

    def _lacks(self, metadata: LedgerMetadata, ledger_id: LedgerId, bookie: BookieId) -> tuple[AbstractSet[int], bool]:
        """Return the entries that a bookie certainly lacks, and whether some copies are damaged."""
        copy, wanted = (bookie, ledger_id), {entry for _, entries in settled(metadata) for entry in entries}
        if bookie not in self.registered or self._is_unknown(metadata, ledger_id, bookie, wanted):
            return frozenset(), False
        if self.held.answers.get(bookie) is not None:
            return frozenset(), False
        seen = wanted if bookie not in self.held.apache else self._sample(metadata, bookie)
        damaged = self.held.damaged.get(copy, set())
        is_damaged = bool(damaged & seen) if bookie in self.held.apache else bool(damaged)
        return self.held.lacks(copy) & seen, is_damaged

    def _fragment(
        self, metadata: LedgerMetadata, ledger_id: LedgerId, number: int, entries: Sequence[int]
    ) -> LackingEntries | None:
        members = metadata.fragments[number].members
        lacks = {member: self._lacks(metadata, ledger_id, member) for member in members}
        positions: set[int] = set()
        severities: list[Severity] = []
        absent = 0
        for entry in entries:
            write_set = _write_set(metadata, entry)
            without = [each for each in write_set if entry in lacks[members[each]][0]]
            if not without:
                continue
            positions.update(without)
            absent += len(without)
            denied = [each for each in without if not lacks[members[each]][1]]
            holders = {members[each] for each in write_set if each not in without} & self.registered
            severities.append(_severity(metadata, len(denied), len(holders)))
        if not positions:
            return None
        missing = frozenset(members[each] for each in positions)
        is_damaged = any(lacks[bookie][1] for bookie in missing)
        return LackingEntries(number, tuple(sorted(positions)), missing, min(severities), absent, is_damaged)


def settled(metadata: LedgerMetadata) -> Iterator[tuple[int, Sequence[int]]]:
    """Yield the fragments that cannot change, with their entries."""
    count = len(metadata.fragments) if metadata.is_closed else len(metadata.fragments) - 2
    for number in range(max(0, count)):
        last: int | None = metadata.last_entry_id
        if number + 1 < len(metadata.fragments):
            end = metadata.fragments[number + 1].first_entry_id - 1
            last = end if last is None else min(end, last)
        assert last is not None
        if entries := range(metadata.fragments[number].first_entry_id, last + 1):
            yield number, entries


def _write_set(metadata: LedgerMetadata, entry: int) -> list[int]:
    return [(entry + i) % metadata.ensemble_size for i in range(metadata.write_quorum)]


def _severity(metadata: LedgerMetadata, denied: int, copies: int) -> Severity:
    if denied == metadata.write_quorum:
        return Severity.LOST
    if copies == 0:
        return Severity.NO_LIVE_COPY
    if copies == 1:
        return Severity.CRITICAL
    return Severity.BELOW_ACK_QUORUM if copies < metadata.ack_quorum else Severity.BELOW_WRITE_QUORUM
