"""The entries of a ledger on a bookie, also if the bookie cannot list them: then each wanted entry is read.

Apache's bookies are not asked for lists, and with ``DbLedgerStorage`` they have none (``bookie.wire.apache.listing``).
An entry they serve is an entry they hold: reading each entry is the same proof as a list (R24: every id, not the first
and last), at the price of its bytes. Entries are dropped as they come; at most ``REQUESTS_MAX`` answers of about
``_ANSWER_BYTES`` are in memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from bookie.model.availability import EntryRuns
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.packet import DamagedEntry, packet_ids
from bookie.runtime.clock import Clock
from bookie.runtime.waiting import all_or_first_error
from bookie.wire.port import READ_ENTRIES_MAX, EntryResult, ListReply, ReadReply, Status, Transport
from bookie.wire.requests import ListEntries, Read

REQUESTS_MAX: Final = 2
"""Reads of one ledger under way at one bookie."""
_ANSWER_BYTES: Final = 1 << 20
"""Size of the answer to one request, estimated from the mean size of the entries so far. The transport's own bound is
larger."""
_ENTRIES_AT_FIRST: Final = 16
_BACKOFF_S: Final = 0.25
_RETRIED: Final = frozenset({Status.TOO_MANY_REQUESTS, Status.TIMEOUT, Status.UNREACHABLE})


@dataclass(frozen=True, slots=True)
class HeldEntries:
    """Asks bookies what they hold. Each request has a deadline of its own and few attempts."""

    transport: Transport
    clock: Clock
    timeout_s: float
    attempts_max: int = 1
    """Of each request that met silence or a busy bookie; pauses between them grow."""

    async def held(self, bookie: BookieId, ledger_id: LedgerId, wanted: Iterable[EntryId]) -> ListReply:
        """The entries listed by the bookie; if it cannot list, those of ``wanted`` (ascending) it serves.

        A list may name more than ``wanted``; see ``probed`` for the rest. A bookie in limbo with an empty list is read
        as well, because it may be unable to list, and stays in limbo even if it serves all of ``wanted``.
        """
        reply = await self.listed(bookie, ledger_id)
        is_bare_limbo = reply.status is Status.LIMBO and not reply.entries
        if reply.status is not Status.UNSUPPORTED and not is_bare_limbo:
            return reply
        probed = await self.probed(bookie, ledger_id, wanted)
        if is_bare_limbo and probed.status is Status.OK:
            return replace(probed, status=Status.LIMBO)
        return probed

    async def listed(self, bookie: BookieId, ledger_id: LedgerId) -> ListReply:
        """The entries listed by the bookie; UNSUPPORTED if it does not list."""
        for attempt in itertools.count(1):
            reply = await self.transport.ask(bookie, ListEntries(ledger_id), self.timeout_s)
            if not await self._is_again(reply.status, attempt):
                return reply
        raise AssertionError("unreachable: counting has no end")

    async def probed(self, bookie: BookieId, ledger_id: LedgerId, wanted: Iterable[EntryId]) -> ListReply:
        """Read each of ``wanted`` (ascending; consumed as needed) and return the ones on the bookie.

        OK: the bookie denied every entry not in the list, one by one. LIMBO: some entries are unknown. CORRUPT: each
        entry not in the list is denied, unknown or damaged. Any other status: the result of a read; nothing is known of
        entries outside the list (S6).
        """
        probe = _Probe(self, bookie, ledger_id, iter(wanted))
        await all_or_first_error(probe.work() for _ in range(REQUESTS_MAX))
        return ListReply(probe.status, EntryRuns.of_runs(probe.runs), probe.detail)

    async def read(self, bookie: BookieId, ledger_id: LedgerId, entry_ids: Sequence[EntryId]) -> ReadReply:
        """Read entries, and retry those without an answer."""
        for attempt in itertools.count(1):
            reply = await self.transport.ask(bookie, Read(ledger_id, entry_ids), self.timeout_s)
            if reply.results or not await self._is_again(reply.status, attempt):
                return reply
        raise AssertionError("unreachable: counting has no end")

    async def _is_again(self, status: Status, attempt: int) -> bool:
        if status not in _RETRIED or attempt >= self.attempts_max:
            return False
        await self.clock.sleep(_BACKOFF_S * 2**attempt)
        return True


@dataclass(slots=True)
class _Probe:
    """Reading of entries, shared by concurrent reads."""

    to: HeldEntries
    bookie: BookieId
    ledger_id: LedgerId
    wanted: Iterator[EntryId]
    runs: list[tuple[int, int]] = field(default_factory=list)
    status: Status = Status.OK
    detail: str = ""
    _answered: int = 0
    _bytes: int = 0

    async def work(self) -> None:
        """Read entries from the iterator until it is exhausted or one read shows nothing can be known."""
        while self._goes_on and (chunk := list(itertools.islice(self.wanted, self._chunk_entries()))):
            while chunk and self._goes_on:
                chunk = await self._read(chunk)

    @property
    def _goes_on(self) -> bool:
        return self.status in (Status.OK, Status.LIMBO, Status.CORRUPT)

    def _chunk_entries(self) -> int:
        if not self._answered:
            return _ENTRIES_AT_FIRST
        mean = max(1, self._bytes // self._answered)
        return max(1, min(_ANSWER_BYTES // mean, READ_ENTRIES_MAX))

    async def _read(self, chunk: list[EntryId]) -> list[EntryId]:
        """Read the part of ``chunk`` that one answer holds; return the rest."""
        reply = await self.to.read(self.bookie, self.ledger_id, chunk)
        held: list[EntryId] = []
        for entry_id, result in zip(chunk, reply.results, strict=False):
            status = self._checked(entry_id, result)
            self._answered += 1
            self._bytes += len(result.packet)
            if status is Status.OK:
                held.append(entry_id)
            else:
                self._note(status, f"entry {entry_id}", result.detail)
        self.runs.extend(EntryRuns.of(held).runs)
        rest = chunk[len(reply.results) :]
        if not rest or (reply.status is Status.OK and reply.results):
            return rest
        if reply.results and reply.status in _RETRIED:
            return rest  # it began to answer: another request, with attempts of its own
        status = Status.IO_ERROR if reply.status is Status.OK else reply.status
        self._note(status, f"entries from {rest[0]} on: {reply.detail}")
        return []

    def _checked(self, entry_id: EntryId, result: EntryResult) -> Status:
        """How reading ``entry_id`` went. Any other entry than the requested one is damage."""
        if result.entry_id != entry_id:
            return Status.CORRUPT
        if result.status is not Status.OK:
            return result.status
        try:
            is_it = packet_ids(result.packet) == (self.ledger_id, entry_id)
        except DamagedEntry:
            return Status.CORRUPT
        return Status.OK if is_it else Status.CORRUPT

    def _note(self, status: Status, what: str, why: str = "") -> None:
        """Record one or more entries not served by the bookie. Absent ones are just not among the runs."""
        is_known = status is self.status or (status is Status.LIMBO and self.status is Status.CORRUPT)
        if status.is_absent or not self._goes_on or is_known:
            return
        self.status, self.detail = status, f"reading {what}: {status.name}{f' ({why})' if why else ''}"
