"""Find out how far an open ledger is written, according to its bookies: the entries that each member should have.

Entries up to the last add confirmed are final. A later entry that some member has may have been acknowledged, and a
recovery would keep it. An entry that no member has was not acknowledged, nor was any later one, because adds are
acknowledged in order. So the written part ends before the first entry that is missing on every member. A member that is
not registered may have it: then the end is unknown.

The last entries that the members report are a lower bound, because an Apache bookie may have later entries than the one
it reports (R137). So the members are also asked for the entries after it, until a gap is found.

After its return with empty disks, a bookie denies entries that it had acknowledged. Apache's bookies do not indicate
this, and Apache's recovery accepts their denials; ours does not (``doubts``). Filling such a bookie up to the end of
the written part changes no metadata and does not affect the writer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bookie.client.held_entries import HeldEntriesReader
from bookie.metadata.bookies.registration import Bookies
from bookie.metadata.ledgers.ledgers import Versioned
from bookie.model.digest import digest_for
from bookie.model.ids import NO_ENTRY, BookieId, EntryId
from bookie.model.metadata import LedgerMetadata
from bookie.model.packet import DamagedEntry, Entry, unpack
from bookie.wire.port import READ_ENTRIES_MAX, EntryResult, ListReply, Status, Transport
from bookie.wire.requests import ReadLast
from replicator.knowledge.evidence import BookieAnswer

_TIMEOUT_S: Final = 15.0
_CHANGEABLE_FRAGMENTS: Final = 2
"""The number of fragments, at the end of the ledger, whose ends may change."""
_WINDOW: Final = READ_ENTRIES_MAX
"""The most entries in one request."""
_REQUEST_GROWTH_FACTOR: Final = 4
"""After the last reported entry, one entry is requested first, and each further request is this many times larger."""
_UNNAMED_FEW: Final = 1000
"""After this many entries beyond the last reported one, the members are asked again for their last entries, because a
writer may add entries."""
_UNNAMED_MAX: Final = 1 << 16
"""The most entries that are searched beyond the last reported one. If there are more, the end is unknown until the
bookie flushes."""


@dataclass(frozen=True, slots=True)
class Written:
    """How far a ledger is written, according to its members."""

    last: EntryId
    """The last entry known to be written, -1 for none."""
    unknown: tuple[BookieAnswer, ...]
    """The members that may have an entry after ``last`` (S6), each with its answer. If empty, ``last`` is the end."""
    confirmed: EntryId
    """The last entry that a member's copies prove to be acknowledged, -1 for none; at most ``last``."""


@dataclass(frozen=True, slots=True)
class _MemberAnswer:
    entry_id: int = NO_ENTRY
    confirmed: int = NO_ENTRY


class Frontier:
    """Asks the members of an unclosed ledger how far it is written."""

    def __init__(self, transport: Transport, held: HeldEntriesReader) -> None:
        self._transport = transport
        self._held = held

    async def of(self, ledger: Versioned, bookies: Bookies) -> Written:
        """Return how far ``ledger`` is written. No answer of a bookie raises an exception."""
        fragments = ledger.metadata.fragments[-_CHANGEABLE_FRAGMENTS:]
        members = sorted({member for fragment in fragments for member in fragment.members} & bookies.registered)
        confirmed: int = NO_ENTRY
        named: int = NO_ENTRY
        unknown: list[BookieAnswer] = []
        for answer in await asyncio.gather(*(self._last(ledger, member) for member in members)):
            if isinstance(answer, BookieAnswer):
                unknown.append(answer)
            else:
                confirmed, named = max(confirmed, answer.confirmed), max(named, answer.entry_id)
        last = EntryId(max(confirmed, ledger.metadata.last_fragment.first_entry_id - 1))  # up to it, all is final
        last, of_next = await self._last_written_between(ledger, members, last, EntryId(named))
        if last < named:
            return Written(last, (*unknown, *of_next), EntryId(confirmed))
        end, of_next = await self._after_named(ledger, members, last)
        if end > last:
            confirmed = max(confirmed, await self._last_confirmed_in_copy(ledger, members, end))
        return Written(end, (*unknown, *of_next), EntryId(confirmed))

    async def _after_named(
        self, ledger: Versioned, members: Sequence[BookieId], named: EntryId
    ) -> tuple[EntryId, list[BookieAnswer]]:
        """Return the last written entry, at least ``named``, and the members that may have a later one.

        If the members report a later last entry during the search, a writer is active. The search then ends at that
        entry, and does not follow the writer.
        """
        last, count = named, 1
        while last - named < _UNNAMED_MAX:
            if last - named >= _UNNAMED_FEW and (later := await self._named(ledger, members)) > last:
                return await self._last_written_between(ledger, members, last, EntryId(later))
            wanted = [EntryId(entry_id) for entry_id in range(last + 1, last + 1 + count)]
            last, unknown = await self._before_first_gap(ledger, members, wanted)
            if last < wanted[-1]:
                return last, unknown
            count = min(_REQUEST_GROWTH_FACTOR * count, _WINDOW)
        detail = (
            f"its last entry is unknown: no bookie reports an entry after {named} as its last one, and there "
            f"are entries up to {last}"
        )
        return last, [BookieAnswer(member, Status.IO_ERROR, detail) for member in members]

    async def _named(self, ledger: Versioned, members: Sequence[BookieId]) -> int:
        """Return the greatest entry that a member reports as its last one, -1 if none does."""
        answers = await asyncio.gather(*(self._last(ledger, member) for member in members))
        return max((each.entry_id for each in answers if isinstance(each, _MemberAnswer)), default=NO_ENTRY)

    async def _last_confirmed_in_copy(self, ledger: Versioned, members: Sequence[BookieId], entry_id: EntryId) -> int:
        """Return the last add confirmed in a verified copy of an entry, -1 if there is no such copy."""
        holders = _write_set(ledger.metadata, entry_id)
        for member in (member for member in members if member in holders):
            for result in (await self._held.read(member, ledger.ledger_id, [entry_id])).results:
                entry = proven(ledger, result)
                if entry is not None and entry.entry_id == entry_id:
                    return min(entry.last_add_confirmed, entry_id - 1)
        return NO_ENTRY

    async def _last(self, ledger: Versioned, bookie: BookieId) -> _MemberAnswer | BookieAnswer:
        """Ask a member for its last entry, and evaluate the answer. A damaged entry counts as written."""
        reply = await self._transport.ask(bookie, ReadLast(ledger.ledger_id), _TIMEOUT_S)
        result = reply.results[0] if reply.results else EntryResult(EntryId(NO_ENTRY), reply.status)
        if result.status.is_absent or result.status is Status.LIMBO:
            return _MemberAnswer()
        if (entry := proven(ledger, result)) is not None:
            return _MemberAnswer(entry.entry_id, min(entry.last_add_confirmed, entry.entry_id - 1))
        if result.entry_id >= 0:
            return _MemberAnswer(result.entry_id)
        status = Status.IO_ERROR if result.status is Status.OK else result.status
        return BookieAnswer(bookie, status, reply.detail or "its last entry cannot be read")

    async def _last_written_between(
        self, ledger: Versioned, members: Sequence[BookieId], last: EntryId, end: EntryId
    ) -> tuple[EntryId, list[BookieAnswer]]:
        """Return the last written entry in ``last..end``, and the members that may have the entry after it."""
        while last < end:
            wanted = [EntryId(entry_id) for entry_id in range(last + 1, min(end, last + _WINDOW) + 1)]
            last, unknown = await self._before_first_gap(ledger, members, wanted)
            if last < wanted[-1]:
                return last, unknown
        return last, []

    async def _before_first_gap(
        self, ledger: Versioned, members: Sequence[BookieId], wanted: Sequence[EntryId]
    ) -> tuple[EntryId, list[BookieAnswer]]:
        """Return the entry before the first gap in ``wanted``, and the members that may have the missing entry."""
        probes = (self._held.probed(member, ledger.ledger_id, wanted) for member in members)
        replies = dict(zip(members, await asyncio.gather(*probes), strict=True))
        for entry_id in wanted:
            holders = _write_set(ledger.metadata, entry_id)
            if not any(_serves(replies[bookie], entry_id) for bookie in holders & replies.keys()):
                answers = (_answer(bookie, replies.get(bookie)) for bookie in sorted(holders))
                return EntryId(entry_id - 1), [each for each in answers if each.status not in (Status.OK, Status.LIMBO)]
        return wanted[-1], []


def _write_set(metadata: LedgerMetadata, entry_id: EntryId) -> set[BookieId]:
    """Return the write set of an entry. Copies on replaced members do not count, as no acknowledgement needed them."""
    members = metadata.fragments[metadata.fragment_index(entry_id)].members
    return {members[position] for position in metadata.stripe.write_set(entry_id)}


def _answer(bookie: BookieId, reply: ListReply | None) -> BookieAnswer:
    if reply is None:
        return BookieAnswer(bookie, Status.UNRESOLVED, "it is not registered, and may have later entries")
    return BookieAnswer(bookie, reply.status, reply.detail)


def _serves(reply: ListReply, entry_id: EntryId) -> bool:
    return entry_id in reply.entries


def proven(ledger: Versioned, result: EntryResult) -> Entry | None:
    """Return the verified entry of a result; None if it is missing, damaged, or not verifiable with this metadata."""
    metadata = ledger.metadata
    if result.status is not Status.OK or metadata.password is None or metadata.digest_type is None:
        return None
    digest = digest_for(metadata.digest_type, metadata.password)
    try:
        return unpack(digest, result.packet, ledger.ledger_id, result.entry_id)
    except DamagedEntry:
        return None
