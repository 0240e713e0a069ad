"""Compare the entries listed by bookies with the entries assigned to them by the metadata.

The invariant: a bookie counts as complete only if it lists every id assigned to it (R24), or serves each of these
entries if it does not support lists. An unreachable bookie is unknown, neither complete nor incomplete (S6).

The comparison has two uses. A target must list every entry before the metadata may name it (S11, I17). And a registered
bookie that a task names is checked, because it may have returned with empty disks (R31). In a growing fragment, it
should have every entry that is written according to the other members (``frontier``). This end is determined once per
turn, so that an active writer does not prolong the turn.

A request for the list of a new target, sent after the reservation, clears a pending mark of the target's collector. So
a deletion that was decided before does not remove entries of the future member (S16). Each add does the same. Apache's
bookies have no such marks; their collectors take the ledger lock before they delete anything.

- Every new target is asked after the last copy, as the proof, except a target of an empty ledger (R118).
- Most are also asked before the first copy (``pin``), for one of two reasons. A target may get no entries, because the
  position has none or they are recorded as copied. Or it must first show that it supports lists. The entries of this
  list are not verified.
- The first request is omitted if a small ledger is copied from its first entry, and the target has just listed another
  ledger.

Nothing is recorded here. After a crash, the next worker asks again.

R rules are defined in docs/failure-model.md, S and I rules in docs/invariants.md.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Final

from bookie.client.access import recorded_digest
from bookie.client.held_entries import Copies, HeldEntriesReader
from bookie.metadata.bookies.registration import Bookies
from bookie.metadata.ledgers.ledgers import Versioned
from bookie.model.availability import EntryRuns
from bookie.model.holdings import ENTRIES_COMPARED_PER_STEP, fragment_entries
from bookie.model.ids import NO_ENTRY, BookieId, EntryId, LedgerId
from bookie.model.metadata import LedgerMetadata, LedgerState
from bookie.model.schedule import Stripe
from bookie.runtime.clock import Clock
from bookie.runtime.human import counted
from bookie.runtime.waiting import paced, run_cooperatively
from bookie.wire.port import ListReply, Status, Transport
from bookie.wire.requests import ReadLast
from replicator.knowledge.evidence import BookieAnswer, CorruptCopy
from replicator.knowledge.frontier import Frontier, Written, proven
from replicator.knowledge.loss import acknowledged_sample, has_lost_entries
from replicator.plan.steps import CopyPosition, PositionKey

LIST_TIMEOUT_S: Final = 15.0
FRAGMENTS_COMPARED_PER_STEP: Final = 200
"""The number of short fragments that are compared between two turns of the event loop: some milliseconds of work."""
_ATTEMPTS_MAX: Final = 4
_NOTHING: Final = EntryRuns(())
_HAS_ENTRIES: Final = frozenset({Status.OK, Status.LIMBO, Status.CORRUPT})
"""Answers that give no reason for doubt. A bookie in limbo denies no entries, and a bookie with a damaged copy still
has its disks."""
_LISTS: Final = frozenset({Status.OK, Status.NO_LEDGER, Status.NO_ENTRY, Status.LIMBO, Status.CORRUPT})
"""Answers with a valid list. CORRUPT means that a bookie without support for lists has damaged entries: they are
missing from its list, and are copied to it again. The list of a bookie in limbo is correct, so the bookie is healthy if
it lists every entry. Entries that it does not list count as missing: they are copied to it again, and not read from
it."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The registered members of the growing fragments, grouped by what their denials prove in a recovery."""

    lost: frozenset[BookieId] = frozenset()
    """The members that lost acknowledged entries."""
    unknown: frozenset[BookieId] = frozenset()
    """The members that may have lost entries: they did not answer, or they joined later and have no entry that proves
    that their disks are the old ones."""
    complete: frozenset[BookieId] = frozenset()
    """The other registered members."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """The incomplete registered bookies with the entries that they have, and the bookies whose entries are unknown."""

    positions: frozenset[PositionKey] = frozenset()
    doubtful: frozenset[PositionKey] = frozenset()
    """Positions of growing fragments whose missing entries only a recovery can determine: the bookie lost its data, or
    the ledger is in recovery and its bookie may be incomplete."""
    lagging: tuple[tuple[PositionKey, EntryId], ...] = ()
    """Positions of growing fragments that lack entries that other members have, each with the last such entry."""
    held: tuple[tuple[BookieId, EntryRuns], ...] = ()
    lacking: tuple[tuple[PositionKey, frozenset[int]], ...] = ()
    """For each of ``positions`` and ``lagging``, the write sets of the missing entries, each named by its first
    position in the ensemble."""
    unread: tuple[tuple[BookieId, EntryRuns], ...] = ()
    """Bookies that could not read some entries of a closed ledger, with these entries (R139)."""
    damaged: tuple[tuple[BookieId, EntryRuns], ...] = ()
    """Bookies that served entries of a closed ledger whose bytes do not verify, with these entries (R41)."""
    damaged_positions: frozenset[PositionKey] = frozenset()
    """Those of ``positions`` that have unread or damaged entries."""
    wrong_byte_positions: frozenset[PositionKey] = frozenset()
    """Those of ``damaged_positions`` that have damaged entries."""
    unknown: tuple[BookieAnswer, ...] = ()
    """Bookies that gave no valid list, each with its answer."""

    def incomplete_members(self) -> frozenset[BookieId]:
        """Return the registered bookies that lack entries in any fragment."""
        return frozenset(key.bookie for key in (*self.positions, *(key for key, _ in self.lagging)))

    def damaged_copies(self) -> Iterator[CorruptCopy]:
        """Yield the unread and the damaged copies: first the last unread one of each bookie, then the others.

        So a caller that takes only some of them has the last one of each bookie, which may be the cause of all others
        (R139).
        """
        last = {bookie: EntryId(runs.groups[-1].last) for bookie, runs in self.unread}
        others = ((bookie, entry_id) for bookie, runs in self.unread for entry_id in runs if entry_id != last[bookie])
        for bookie, entry_id in itertools.chain(last.items(), others):
            yield CorruptCopy(bookie, entry_id, "the bookie answered a read of it with an I/O error")
        for bookie, runs in self.damaged:
            for entry_id in runs:
                yield CorruptCopy(bookie, entry_id, "its bytes do not verify")

    def held_by(self, bookie: BookieId) -> EntryRuns:
        """Return the entries that an incomplete bookie lists."""
        return next((runs for name, runs in self.held if name == bookie), EntryRuns(()))


@dataclass(slots=True)
class _Found:
    """A ``Shortfall`` while it is found, member by member."""

    positions: set[PositionKey] = field(default_factory=set)
    doubtful: set[PositionKey] = field(default_factory=set)
    lagging: list[tuple[PositionKey, EntryId]] = field(default_factory=list)
    held: list[tuple[BookieId, EntryRuns]] = field(default_factory=list)
    lacking: list[tuple[PositionKey, frozenset[int]]] = field(default_factory=list)
    unread: list[tuple[BookieId, EntryRuns]] = field(default_factory=list)
    damaged: list[tuple[BookieId, EntryRuns]] = field(default_factory=list)
    damaged_positions: set[PositionKey] = field(default_factory=set)
    wrong_byte_positions: set[PositionKey] = field(default_factory=set)
    unknown: list[BookieAnswer] = field(default_factory=list)

    async def add(self, metadata: LedgerMetadata, bookie: BookieId, frontier: EntryId, copies: Copies) -> None:
        """Compare the answer of a member with the metadata, in growing fragments up to ``frontier``."""
        reply = copies.held
        if reply.status not in _LISTS:
            self.unknown.append(BookieAnswer(bookie, reply.status, reply.detail))
            return
        incomplete = [key async for key in _incomplete_positions(metadata, bookie, reply.entries)]
        if metadata.is_closed:
            await self._add_damage(metadata, bookie, incomplete, copies)
        lagging = [each async for each in _lagging_positions(metadata, bookie, reply.entries, frontier)]
        if incomplete or lagging:
            self.held.append((bookie, reply.entries))
            ends = {key: _last_to_hold(metadata, key) for key in incomplete} | dict(lagging)
            async for key, last in paced(ends.items(), FRAGMENTS_COMPARED_PER_STEP):
                starts = await lacking_write_sets(
                    metadata.stripe, key.position, reply.entries, key.first_entry_id, last
                )
                self.lacking.append((key, starts))
        self.positions.update(incomplete)
        if reply.status is Status.LIMBO:
            self.doubtful.update(_growing_positions(metadata, bookie))
        else:
            self.lagging.extend(lagging)

    async def _add_damage(
        self, metadata: LedgerMetadata, bookie: BookieId, incomplete: Sequence[PositionKey], copies: Copies
    ) -> None:
        """Add the unread and the damaged entries of a closed ledger, and their positions."""
        for found, runs in ((self.unread, copies.unread), (self.damaged, copies.damaged)):
            if runs:
                found.append((bookie, runs))
                keys = [
                    key
                    async for key in paced(incomplete, FRAGMENTS_COMPARED_PER_STEP)
                    if await _has_some(metadata, key, runs)
                ]
                self.damaged_positions.update(keys)
                self.wrong_byte_positions.update(keys if found is self.damaged else ())

    def shortfall(self) -> Shortfall:
        return Shortfall(
            positions=frozenset(self.positions),
            doubtful=frozenset(self.doubtful),
            lagging=tuple(self.lagging),
            held=tuple(self.held),
            lacking=tuple(self.lacking),
            unread=tuple(self.unread),
            damaged=tuple(self.damaged),
            damaged_positions=frozenset(self.damaged_positions),
            wrong_byte_positions=frozenset(self.wrong_byte_positions),
            unknown=tuple(self.unknown),
        )


class HoldingsReader:
    """Asks bookies for their entries. One instance per turn of a task."""

    def __init__(self, transport: Transport, clock: Clock) -> None:
        self._transport = transport
        self._held = HeldEntriesReader(transport, clock, LIST_TIMEOUT_S, _ATTEMPTS_MAX)
        self._frontier = Frontier(transport, self._held)
        self._written: Written | None = None
        self._pinned: dict[BookieId, ListReply] = {}

    async def pin(self, ledger_id: LedgerId, target: BookieId) -> BookieAnswer | None:
        """Ask a target for its list before anything is copied to it, so that its collector does not delete the ledger.

        Return None if the target answered with a list or does not support lists, else its answer. The list alone is no
        reason to copy less, because it is not verified; ``already_copied`` combines it with the recorded progress.

        The request has no such effect on Apache's bookies, whether or not they support lists. There the
        under-replication lock protects the copies, because Apache's collector takes it before it deletes anything
        (S16).
        """
        reply = await self._held.listed(target, ledger_id)
        self._pinned[target] = reply
        is_answer = reply.status in _LISTS or reply.status is Status.UNSUPPORTED
        return None if is_answer else BookieAnswer(target, reply.status, reply.detail)

    def is_listing(self, target: BookieId) -> bool:
        """Whether a pinned target supports lists."""
        reply = self._pinned.get(target)
        return reply is not None and reply.status is not Status.UNSUPPORTED

    def already_copied(self, target: BookieId, first: EntryId, end: EntryId) -> EntryRuns:
        """Return the entries from ``first`` (inclusive) to ``end`` (exclusive) that a pinned target still lists.

        The caller knows that these entries are recorded as copied. If the target does not support lists, all of them
        are returned: the target must serve each of them before the metadata names it.
        """
        reply = self._pinned.get(target)
        if reply is None or end <= first:
            return EntryRuns(())
        if reply.status is Status.UNSUPPORTED:
            return EntryRuns(((first, end - 1),))
        return reply.entries.between(first, end - 1)

    def already_copied_for(self, position: int, step: CopyPosition, end: EntryId) -> EntryRuns:
        """Return the entries of ``position`` before ``end`` if the pinned target of ``step`` lists all of them.

        Otherwise return none. They are recorded as copied for ``position``, which is not the position of ``step``, but
        positions of a striped fragment share entries.
        """
        recorded = step.stripe.runs(position, step.first, end - 1)
        listed = self.already_copied(step.target, step.first, end)
        lists_all = step.stripe.held_count(position, listed, step.first, end - 1) == len(recorded)
        return recorded if lists_all else EntryRuns(())

    async def missing_on_target(
        self, ledger: Versioned, step: CopyPosition, left_out: EntryRuns = _NOTHING
    ) -> BookieAnswer | None:
        """Return None if the target lists (or, without lists, serves) every entry of ``step``; else its answer.

        The target may lack the entries in ``left_out``, of which no bookie has a copy (R148).
        """
        digest = recorded_digest(ledger.metadata)
        reply = await self._held.held(step.target, ledger.ledger_id, step.entries(), digest)
        if reply.status in _LISTS:
            entries = reply.entries
            if left_out:
                own = entries.between(step.first, step.last)
                entries = await run_cooperatively(EntryRuns.union_with_pauses(own, left_out))
            held = await _held_count(step.stripe, step.position, entries, step.first, step.last)
            if held == step.entry_count:
                return None
            return BookieAnswer(step.target, reply.status, f"lists {held} of {counted(step.entry_count, 'entry')}")
        return BookieAnswer(step.target, reply.status, reply.detail)

    async def found_on_target(self, ledger: Versioned, target: BookieId, left_out: EntryRuns) -> EntryRuns:
        """Return those of ``left_out`` that a target has nevertheless, perhaps since it was a member earlier (R148)."""
        reply = await self._held.held(target, ledger.ledger_id, left_out, recorded_digest(ledger.metadata))
        if reply.status not in _LISTS:
            return _NOTHING
        own = reply.entries.between(left_out.groups[0].first, left_out.groups[-1].last)
        union = await run_cooperatively(EntryRuns.union_with_pauses(own, left_out))
        if len(union) == len(own) + len(left_out):
            return _NOTHING
        return EntryRuns.of(entry_id for entry_id in left_out if entry_id in own)

    async def shortfall(self, ledger: Versioned, named: Collection[BookieId], bookies: Bookies) -> Shortfall:
        """Return which registered members among ``named`` lack entries, or may lack entries of growing fragments.

        Draining bookies are not asked, because they are replaced if possible, whatever they have.

        In a closed ledger, an entry that an Apache bookie cannot read is a damaged copy (R139), and so is one whose
        bytes do not verify (R41). In an unclosed ledger, the former is unknown (S6), and bytes are not verified.
        """
        metadata, found = ledger.metadata, _Found()
        frontier = NO_ENTRY
        asked = sorted(set(named) & metadata.members() & bookies.registered)
        if not metadata.is_closed and not bookies.draining.issuperset(asked):
            known = await self._first_read_written_part(ledger, bookies)
            frontier = known.last
            found.unknown.extend(known.unknown)
        for bookie in asked:
            if metadata.state is LedgerState.IN_RECOVERY:
                found.doubtful.update(_growing_positions(metadata, bookie))
            if bookie not in bookies.draining:
                await found.add(metadata, bookie, frontier, await self._copies(ledger, bookie, frontier))
        return found.shortfall()

    async def _copies(self, ledger: Versioned, bookie: BookieId, frontier: EntryId) -> Copies:
        """Ask a member for its entries of the judged fragments, in growing ones up to ``frontier``."""
        wanted = _wanted_entries(ledger.metadata, bookie, frontier)
        if ledger.metadata.is_closed:
            return await self._held.copies(bookie, ledger.ledger_id, wanted, recorded_digest(ledger.metadata))
        return Copies(await self._held.held(bookie, ledger.ledger_id, wanted))

    async def judge_members(
        self, ledger: Versioned, bookies: Bookies, joined_later: Collection[BookieId] = ()
    ) -> Judgement:
        """Ask every registered member of the growing fragments for a sample of its acknowledged entries.

        Apache's bookies do not indicate that they returned with empty disks, and a task need not name them.

        Args:
            ledger: an unclosed ledger.
            bookies: the registered bookies; other members are not judged.
            joined_later: members whose disks may be newer than the ledger. Such a member must show its entries for
                each growing fragment separately, because a repair may have copied those of another fragment to it.
                If the sample contains no entry of a fragment, the member is unknown (R92).
        """
        metadata = ledger.metadata
        asked = sorted(growing_members(metadata) & bookies.registered)
        confirmed = (await self._first_read_written_part(ledger, bookies)).confirmed
        samples = [acknowledged_sample(metadata, member, confirmed) for member in asked]
        probes = (self._held.probed(*each) for each in zip(asked, repeat(ledger.ledger_id), samples, strict=False))
        lost, unknown = set(), set()
        for member, sample, reply in zip(asked, samples, await asyncio.gather(*probes), strict=True):
            apart = list(_growing_parts(metadata, member, sample)) if member in joined_later else []
            if reply.status is Status.OK and any(has_lost_entries(each, reply.entries) for each in (sample, *apart)):
                lost.add(member)
            elif reply.status not in _HAS_ENTRIES or not all(apart):
                unknown.add(member)
        return Judgement(frozenset(lost), frozenset(unknown), frozenset(asked) - lost - unknown)

    async def _first_read_written_part(self, ledger: Versioned, bookies: Bookies) -> Written:
        """Return the written part as first read in this turn, so that an active writer does not prolong the turn."""
        if self._written is not None:
            return self._written
        written = await self._frontier.of(ledger, bookies)
        if not written.unknown:
            self._written = written
        return written

    async def is_tail_written(self, ledger: Versioned, bookies: Bookies) -> bool:
        """Whether some bookie serves a verified entry of the last fragment. False if unknown."""
        metadata = ledger.metadata
        if metadata.password is None or metadata.digest_type is None:
            return False
        last = metadata.last_fragment
        for bookie in dict.fromkeys(member for member in last.members if member in bookies.registered):
            reply = await self._transport.ask(bookie, ReadLast(ledger.ledger_id), LIST_TIMEOUT_S)
            for result in reply.results:
                if result.entry_id >= last.first_entry_id and proven(ledger, result) is not None:
                    return True  # otherwise the next member may have a good copy
        return False


def growing_members(metadata: LedgerMetadata) -> frozenset[BookieId]:
    """Return the members of the growing fragments of an unclosed ledger: those whose end only a recovery determines."""
    return frozenset(member for index in metadata.growing() for member in metadata.fragments[index].members)


def _growing_parts(
    metadata: LedgerMetadata, bookie: BookieId, sample: Sequence[EntryId]
) -> Iterator[Sequence[EntryId]]:
    """Yield the entries of ``sample`` in each growing fragment of the bookie."""
    for index in metadata.growing():
        fragment, last = metadata.fragments[index], metadata.fragment_last_entry_id(index)
        if bookie in fragment.members:
            yield [each for each in sample if fragment.first_entry_id <= each and (last is None or each <= last)]


def _growing_positions(metadata: LedgerMetadata, bookie: BookieId) -> Iterator[PositionKey]:
    for index in metadata.growing():
        fragment = metadata.fragments[index]
        for position, member in enumerate(fragment.members):
            if member == bookie:
                yield PositionKey(fragment.first_entry_id, position, bookie)


async def _lagging_positions(
    metadata: LedgerMetadata, bookie: BookieId, listed: EntryRuns, frontier: EntryId
) -> AsyncIterator[tuple[PositionKey, EntryId]]:
    """Yield the incomplete positions of growing fragments, each with the last entry that it should have."""
    for key in _growing_positions(metadata, bookie):
        end = metadata.fragment_last_entry_id(metadata.fragment_index(key.first_entry_id))
        last = frontier if end is None else EntryId(min(frontier, end))
        if await _lacks_any_in_steps(metadata.stripe, key.position, listed, key.first_entry_id, last):
            yield key, last


def _wanted_entries(metadata: LedgerMetadata, bookie: BookieId, frontier: EntryId) -> Iterator[EntryId]:
    """Yield the entries that the bookie should have: in growing fragments, those up to ``frontier``."""
    for index in range(len(metadata.fragments)):
        last = metadata.final_last_entry_id(index, is_tail_written=True)
        last = frontier if last is None else last
        if last >= metadata.fragments[index].first_entry_id:
            yield from fragment_entries(metadata, index, last, bookie)


async def _incomplete_positions(
    metadata: LedgerMetadata, bookie: BookieId, listed: EntryRuns
) -> AsyncIterator[PositionKey]:
    """Yield the incomplete positions of fragments with a known end.

    This includes the last fragment but one of an unclosed ledger, whose end the plan may know.
    """
    async for index, fragment in paced(enumerate(metadata.fragments), FRAGMENTS_COMPARED_PER_STEP):
        last = metadata.final_last_entry_id(index, is_tail_written=True)
        for position, member in enumerate(fragment.members):
            key = PositionKey(fragment.first_entry_id, position, bookie)
            if (
                last is not None
                and member == bookie
                and await _lacks_any_in_steps(metadata.stripe, key.position, listed, key.first_entry_id, last)
            ):
                yield key


def _last_to_hold(metadata: LedgerMetadata, key: PositionKey) -> EntryId:
    """Return the last entry of a fragment with a known end, as ``_incomplete_positions`` judges it."""
    last = metadata.final_last_entry_id(metadata.fragment_index(key.first_entry_id), is_tail_written=True)
    assert last is not None, "only a growing fragment has no end"
    return last


async def lacking_write_sets(
    stripe: Stripe, position: int, listed: EntryRuns, first: EntryId, last: EntryId
) -> frozenset[int]:
    """Return the write sets of the position with an entry in ``first..last`` that is not listed."""
    if stripe.write_quorum == stripe.ensemble_size:  # all write sets have the same members
        return stripe.starts(first, last)
    one_each = Stripe(stripe.ensemble_size, 1)  # its position n stores the entries of the write set n
    starts = [start for start in sorted(stripe.starts(first, last)) if stripe.stores(position, start)]
    return frozenset([start for start in starts if await _lacks_any_in_steps(one_each, start, listed, first, last)])


async def _has_some(metadata: LedgerMetadata, key: PositionKey, listed: EntryRuns) -> bool:
    """Whether any entry of a position of a closed ledger is listed."""
    last = metadata.final_last_entry_id(metadata.fragment_index(key.first_entry_id))
    return last is not None and await _held_count(metadata.stripe, key.position, listed, key.first_entry_id, last) > 0


async def lacking_count(stripe: Stripe, position: int, listed: EntryRuns, first: EntryId, last: EntryId) -> int:
    """Count the position's entries in ``first..last`` that are not listed, pausing as ``_lacks_any_in_steps`` does."""
    return stripe.count(position, first, last) - await _held_count(stripe, position, listed, first, last)


async def _lacks_any_in_steps(stripe: Stripe, position: int, listed: EntryRuns, first: EntryId, last: EntryId) -> bool:
    """Do the same as ``_lacks``, with pauses for other tasks: a striped ledger has a run for every few entries."""
    for start in range(first, last + 1, ENTRIES_COMPARED_PER_STEP):
        if _lacks(stripe, position, listed, EntryId(start), EntryId(min(last, start + ENTRIES_COMPARED_PER_STEP - 1))):
            return True
        if start + ENTRIES_COMPARED_PER_STEP <= last:
            await asyncio.sleep(0)
    return False


async def _held_count(stripe: Stripe, position: int, listed: EntryRuns, first: EntryId, last: EntryId) -> int:
    """Count the listed entries of the position in ``first..last``, with pauses as in ``_lacks_any_in_steps``."""
    count = 0
    for start in range(first, last + 1, ENTRIES_COMPARED_PER_STEP):
        count += stripe.held_count(position, listed, start, min(last, start + ENTRIES_COMPARED_PER_STEP - 1))
        if start + ENTRIES_COMPARED_PER_STEP <= last:
            await asyncio.sleep(0)
    return count


def _lacks(stripe: Stripe, position: int, listed: EntryRuns, first: EntryId, last: EntryId) -> bool:
    """Whether any entry of the position in ``first..last`` is not listed. Every id counts (R24)."""
    return stripe.held_count(position, listed, first, last) < stripe.count(position, first, last)
