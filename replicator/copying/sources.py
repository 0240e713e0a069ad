"""Read verified entries from their holders, in bulk if possible, otherwise one by one.

An entry counts as read only after its digest and ids were verified (S10). Its holders are asked one after another until
one serves it; every refusal until then is kept as evidence. A DUMMY digest proves nothing. With it, a copy counts if a
second holder has the same copy, or if no other holder has one.

Memory is bounded by ``answer_bytes_max``, whatever the sizes of the entries: the holders are asked one after another
until a full batch was read. The other entries are requested again later.

If a holder has not answered for ``SLOW_S``, the next holders are asked as well, and the first answer counts (a
speculative read). So a read does not wait for a slow holder until the deadline. The second answer needs its own memory.
If the budget has no room for it immediately, the read waits for the first answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from bookie.model.digest import Digest
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import DigestType
from bookie.model.packet import HEADER_SIZE, PACKET_BYTES_MAX
from bookie.runtime.clock import Clock
from bookie.runtime.tasks import cancel
from bookie.runtime.waiting import first_of
from bookie.wire.circuits import SLOW_S
from bookie.wire.port import (
    BATCH_BYTES_MAX,
    READ_BYTES_MAX,
    SMALL_READ_BYTES,
    EntryResult,
    ReadReply,
    Status,
    Transport,
)
from bookie.wire.requests import Read
from bookie.wire.verified import verified
from replicator.copying.throttle import ByteBudget
from replicator.knowledge.evidence import BookieAnswer, CorruptCopy, UnreadableEntry

READ_TIMEOUT_S: Final = 15.0
_ROUND_BYTES_MAX: Final = BATCH_BYTES_MAX + READ_BYTES_MAX + PACKET_BYTES_MAX
"""The most bytes that one round reads: less than a batch, and one more answer."""
_ROUNDS_WITHOUT_DIGEST: Final = 3
"""The rounds that read copies for comparison, if there is no digest."""
_LAC: Final = slice(16, 24)
"""The header bytes in which good copies may differ, because Apache's recovery writes the LAC field again.

Source: docs/formats.md#recovery, #apache-worker.
"""

Orders = Mapping[EntryId, Sequence[BookieId]]
"""The bookies to ask for each entry, in order."""
Answers = tuple[BookieAnswer, ...]


@dataclass(slots=True)
class FetchedEntries:
    """The result of a round of reading. Every requested entry is in exactly one of the first three fields."""

    packets: dict[EntryId, bytes] = field(default_factory=dict, repr=False)
    rest: list[EntryId] = field(default_factory=list)
    """Entries that were not read because a limit on bytes was reached. They must be requested again."""
    unreadable: list[UnreadableEntry] = field(default_factory=list)
    corrupt: list[CorruptCopy] = field(default_factory=list)
    served_by: dict[EntryId, BookieId] = field(default_factory=dict)
    unresponsive: set[BookieId] = field(default_factory=set)
    """Bookies that gave no proper answer. They are asked last from now on."""
    lacking: set[BookieId] = field(default_factory=set)
    """Bookies that denied an entry that another bookie served, or that could not read it (R140)."""

    @property
    def size_bytes(self) -> int:
        """The size of the entries read."""
        return sum(map(len, self.packets.values()))


@dataclass(frozen=True, slots=True)
class Speculation:
    """What speculative reads need."""

    clock: Clock
    budget: ByteBudget
    """The limit on the memory of all reads of the process."""


class EntrySource:
    """Reads one ledger's entries."""

    def __init__(
        self,
        transport: Transport,
        ledger_id: LedgerId,
        digest: Digest,
        payload_bytes_max: int | None = None,
        speculation: Speculation | None = None,
    ) -> None:
        """Prepare; ``payload_bytes_max`` is the length of a closed ledger, None if unknown.

        Without ``speculation``, each read waits for its holder until the deadline.
        """
        self.speculation = speculation
        self._transport = transport
        self._ledger_id = ledger_id
        self._digest = digest
        self._payload_bytes_max = payload_bytes_max

    def answer_bytes_max(self, entry_count: int) -> int:
        """Return the most bytes that ``fetch`` holds for this many entries of any size."""
        rounds = _ROUNDS_WITHOUT_DIGEST if self._digest.type is DigestType.DUMMY else 1
        size = min(entry_count * PACKET_BYTES_MAX, _ROUND_BYTES_MAX)
        if self._payload_bytes_max is not None:  # so that copies of small ledgers hardly wait for each other
            size = min(size, self._payload_bytes_max + entry_count * (HEADER_SIZE + self._digest.size))
        return rounds * size

    async def fetch(self, orders: Orders) -> FetchedEntries:
        """Read the entries of ``orders``, or as many of them as fit into one answer and a batch.

        No answer of a bookie raises an exception.
        """
        fetched = await _Round(self, orders).run()
        if self._digest.type is DigestType.DUMMY:
            await self._compare(fetched, orders)
        return fetched

    async def ask(self, bookie: BookieId, entry_ids: Sequence[EntryId]) -> ReadReply:
        """Send one read request to one bookie."""
        is_small = self.answer_bytes_max(len(entry_ids)) <= SMALL_READ_BYTES
        return await self._transport.ask(bookie, Read(self._ledger_id, entry_ids, is_small=is_small), READ_TIMEOUT_S)

    def verified(self, result: EntryResult, entry_id: EntryId) -> EntryResult:
        """Return ``result``, or CORRUPT if its bytes do not verify."""
        return verified(self._digest, self._ledger_id, entry_id, result)

    async def _compare(self, fetched: FetchedEntries, orders: Orders) -> None:
        """Compare each copy with the copy of another holder; if they differ, a third one decides."""
        others = {
            entry_id: [bookie for bookie in orders[entry_id] if bookie != served_by]
            for entry_id, served_by in fetched.served_by.items()
        }
        second = await _Round(self, others).run()
        fetched.corrupt.extend(second.corrupt)
        fetched.lacking |= second.lacking.union(*(_lacking(entry.answers) for entry in second.unreadable))
        for entry_id in second.rest:
            del fetched.packets[entry_id]
            fetched.rest.append(entry_id)
        differing = {i: p for i, p in second.packets.items() if not _is_same_except_lac(p, fetched.packets[i])}
        if not differing:
            return
        third = await _Round(self, {i: [b for b in others[i] if b != second.served_by[i]] for i in differing}).run()
        unknown = {entry.entry_id: entry.answers for entry in third.unreadable}
        for entry_id, packet in differing.items():
            if entry_id in third.rest:
                del fetched.packets[entry_id]
                fetched.rest.append(entry_id)
                continue
            witness = third.packets.get(entry_id, b"")
            self._settle(fetched, entry_id, _Copy(second.served_by[entry_id], packet), witness, unknown)

    def _settle(
        self,
        fetched: FetchedEntries,
        entry_id: EntryId,
        other: _Copy,
        witness: bytes,
        unknown: Mapping[EntryId, Answers],
    ) -> None:
        first = _Copy(fetched.served_by[entry_id], fetched.packets[entry_id])
        for good, bad in ((first, other), (other, first)):
            if witness and _is_same_except_lac(witness, good.packet):
                fetched.packets[entry_id] = good.packet
                fetched.corrupt.append(CorruptCopy(bad.bookie, entry_id, "differs from two other copies"))
                return
        del fetched.packets[entry_id]
        answers = tuple(BookieAnswer(copy.bookie, Status.CORRUPT, "copies differ") for copy in (first, other))
        fetched.unreadable.append(UnreadableEntry(entry_id, answers + unknown.get(entry_id, ())))


@dataclass(frozen=True, slots=True)
class _Copy:
    bookie: BookieId
    packet: bytes = field(repr=False)


class _Round:
    """One pass over the holders of some entries."""

    def __init__(self, source: EntrySource, orders: Orders) -> None:
        self._source = source
        self._orders = orders
        self._answers: dict[EntryId, list[BookieAnswer]] = {}
        self._bytes = 0
        self._result = FetchedEntries()

    async def run(self) -> FetchedEntries:
        waiting = sorted(self._orders)
        while waiting:
            waiting = await self._ask_next_holders(waiting)
        self._result.rest.sort()
        for entry_id in self._answers.keys() & self._result.packets.keys():
            self._result.lacking |= _lacking(self._answers[entry_id])
        return self._result

    async def _ask_next_holders(self, waiting: Sequence[EntryId]) -> list[EntryId]:
        groups: dict[BookieId, list[EntryId]] = {}
        for entry_id in waiting:
            answers = self._answers.get(entry_id, ())
            order = self._orders[entry_id]
            if len(answers) < len(order):
                groups.setdefault(order[len(answers)], []).append(entry_id)
            else:
                self._result.unreadable.append(UnreadableEntry(entry_id, tuple(answers)))
        refused: list[EntryId] = []
        for bookie, ids in groups.items():
            if self._bytes >= BATCH_BYTES_MAX:
                self._result.rest.extend(ids)
            else:
                refused.extend(await self._ask(bookie, ids))
        return sorted(refused)

    async def _ask(self, bookie: BookieId, ids: Sequence[EntryId]) -> list[EntryId]:
        """Ask one holder, and others as well if it is slow; return the entries to request from the next holders."""
        asked = asyncio.ensure_future(self._source.ask(bookie, ids))
        try:
            served = await self._speculate(bookie, ids, asked)
            waiting = [entry_id for entry_id in ids if entry_id not in served] if served else ids
            if not waiting:
                return []
            reply = await asked
            part = _part(reply, ids, waiting)
            if reply.results and not part.results and reply.status is Status.OK:  # the answer was full before these
                self._result.rest.extend(waiting)
                return []
            return self._sort_out(bookie, waiting, part)
        finally:
            await cancel(asked)  # it still runs if the others were faster

    async def _speculate(
        self, bookie: BookieId, ids: Sequence[EntryId], asked: asyncio.Task[ReadReply]
    ) -> Collection[EntryId]:
        """If ``asked`` takes long, ask the next holders; return the entries that they served before ``asked`` ended."""
        speculation = self._source.speculation
        if speculation is None:
            return ()
        await first_of([speculation.clock.sleep(SLOW_S)], [asked])
        if asked.done():
            return ()
        others = {i: self._orders[i][len(self._answers.get(i, ())) + 1 :] for i in ids}
        others = {entry_id: order for entry_id, order in others.items() if order}
        if not others:
            return ()
        with speculation.budget.try_hold(self._source.answer_bytes_max(len(others))) as has_room:
            if not has_room:
                return ()
            self._result.unresponsive.add(bookie)
            second = asyncio.ensure_future(_Round(self._source, others).run())
            try:
                both: list[asyncio.Task[Any]] = [asked, second]
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                if not second.done():
                    return ()
                return self._take(second.result())
            finally:
                await cancel(second)

    def _take(self, other: FetchedEntries) -> Collection[EntryId]:
        """Add the entries that a speculative round read to the result, and return them."""
        result = self._result
        result.packets |= other.packets
        result.served_by |= other.served_by
        result.corrupt += other.corrupt
        result.unresponsive |= other.unresponsive
        result.lacking |= other.lacking
        self._bytes += other.size_bytes
        return other.packets.keys()

    def _sort_out(self, bookie: BookieId, ids: Sequence[EntryId], reply: ReadReply) -> list[EntryId]:
        refused: list[EntryId] = []
        packets, served_by = self._result.packets, self._result.served_by
        for entry_id, result in zip(ids, reply.results, strict=False):
            found = self._source.verified(result, entry_id)
            if found.status is Status.OK:
                packets[entry_id] = found.packet
                self._bytes += len(found.packet)
                served_by[entry_id] = bookie
                continue
            if found.status is Status.CORRUPT:
                detail = found.detail or "the bookie found its own copy damaged"
                self._result.corrupt.append(CorruptCopy(bookie, entry_id, detail))
            refused.append(self._refuse(entry_id, BookieAnswer(bookie, found.status, found.detail)))
        uncovered = ids[len(reply.results) :]
        if reply.status is Status.OK and reply.results:
            self._result.rest.extend(uncovered)
            return refused
        status = Status.BAD_REQUEST if reply.status is Status.OK else reply.status
        if uncovered and not BookieAnswer(bookie, status).is_final:
            self._result.unresponsive.add(bookie)
        refused.extend(self._refuse(entry_id, BookieAnswer(bookie, status, reply.detail)) for entry_id in uncovered)
        return refused

    def _refuse(self, entry_id: EntryId, answer: BookieAnswer) -> EntryId:
        self._answers.setdefault(entry_id, []).append(answer)
        return entry_id


def _part(reply: ReadReply, ids: Sequence[EntryId], waiting: Sequence[EntryId]) -> ReadReply:
    """Return the part of a reply to a request for ``ids`` that is about the entries in ``waiting``."""
    if len(waiting) == len(ids):
        return reply
    kept = set(waiting)
    results = [result for entry_id, result in zip(ids, reply.results, strict=False) if entry_id in kept]
    return replace(reply, results=results)


def _lacking(answers: Iterable[BookieAnswer]) -> set[BookieId]:
    """Return the bookies that denied an entry or could not read it.

    An I/O error with a detail is an error of this process, not of the bookie.
    """
    return {
        answer.bookie
        for answer in answers
        if answer.status.is_absent or (answer.status is Status.IO_ERROR and not answer.detail)
    }


def _is_same_except_lac(one: bytes, other: bytes) -> bool:
    """Whether two copies are equal except for the LAC field. This is valid only for digests of size 0."""
    return (
        one[: _LAC.start] == other[: _LAC.start]
        and one[_LAC.stop : HEADER_SIZE] == other[_LAC.stop : HEADER_SIZE]
        and one[HEADER_SIZE:] == other[HEADER_SIZE:]
    )
