"""The entries of a ledger on a bookie. If the bookie cannot list them, each wanted entry is read.

Apache's bookies are not asked for lists, and with ``DbLedgerStorage`` they have none (``bookie.wire.apache.listing``).
An entry they serve is an entry they hold: reading each entry is the same proof as a list (R24: every id, not the first
and last), at the price of its bytes. Bookies do not verify digests, so an entry counts as held only if its bytes verify
here, if the digest is known. Entries are dropped as they come; at most ``REQUESTS_MAX`` answers of about
``_ANSWER_BYTES`` are in memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from bookie.model.availability import EntryRuns
from bookie.model.digest import Digest
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.packet import DamagedEntry, packet_ids
from bookie.runtime.clock import Clock
from bookie.runtime.waiting import all_or_first_error
from bookie.wire.port import READ_ENTRIES_MAX, EntryResult, ListReply, ReadReply, Status, Transport
from bookie.wire.requests import ListEntries, Read
from bookie.wire.verified import verified

REQUESTS_MAX: Final = 2
"""Reads of one ledger under way at one bookie."""
_ANSWER_BYTES: Final = 1 << 20
"""Size of the answer to one request, estimated from the mean size of the entries so far. The transport's own bound is
larger."""
_ENTRIES_AT_FIRST: Final = 16
_BACKOFF_S: Final = 0.25
_NOTHING: Final = EntryRuns(())
_RETRIED: Final = frozenset({Status.TOO_MANY_REQUESTS, Status.TIMEOUT, Status.UNREACHABLE})


@dataclass(frozen=True, slots=True)
class Copies:
    """The copies of a ledger on a bookie."""

    held: ListReply
    """The held entries, as returned by ``HeldEntries.held``. CORRUPT if any of the others are damaged."""
    unread: EntryRuns = _NOTHING
    """Wanted entries that the bookie could not read: damaged copies."""
    damaged: EntryRuns = _NOTHING
    """Wanted entries whose bytes do not verify."""


@dataclass(frozen=True, slots=True)
class HeldEntries:
    """Asks bookies what they hold. Each request has a deadline of its own and few attempts."""

    transport: Transport
    clock: Clock
    timeout_s: float
    attempts_max: int = 1
    """Of each request that met silence or a busy bookie; pauses between them grow."""

    async def held(
        self, bookie: BookieId, ledger_id: LedgerId, wanted: Iterable[EntryId], digest: Digest | None = None
    ) -> ListReply:
        """Return the entries listed by the bookie; if it cannot list, those of ``wanted`` (ascending) it serves.

        A list may name more than ``wanted``; see ``probed`` for the rest. A bookie in limbo with an empty list is read
        as well, because it may be unable to list, and stays in limbo even if it serves all of ``wanted``.
        """
        reply = await self.listed(bookie, ledger_id)
        if reply.status is Status.UNSUPPORTED:
            return await self.probed(bookie, ledger_id, wanted, digest)
        return await self._completed(reply, bookie, ledger_id, wanted, digest)

    async def copies(
        self, bookie: BookieId, ledger_id: LedgerId, wanted: Iterable[EntryId], digest: Digest | None = None
    ) -> Copies:
        """As ``held``, for the repair of a closed ledger: an I/O error about one entry is a damaged copy of it (R139).

        This is the only answer of Apache's bookies for a damaged entry, and for one whose entry log is lost. It counts
        only if the bookie does not support lists. A bookie with support for lists has an answer of its own for damage.
        """
        reply = await self.listed(bookie, ledger_id)
        if reply.status is Status.UNSUPPORTED:
            return await self.read_copies(bookie, ledger_id, wanted, digest)
        return Copies(await self._completed(reply, bookie, ledger_id, wanted, digest))

    async def _completed(
        self,
        reply: ListReply,
        bookie: BookieId,
        ledger_id: LedgerId,
        wanted: Iterable[EntryId],
        digest: Digest | None,
    ) -> ListReply:
        """Return a list. One from a bookie in limbo is first completed if it is empty."""
        if reply.status is not Status.LIMBO or reply.entries:
            return reply
        probed = await self.probed(bookie, ledger_id, wanted, digest)
        return replace(probed, status=Status.LIMBO) if probed.status is Status.OK else probed

    async def read_copies(
        self, bookie: BookieId, ledger_id: LedgerId, wanted: Iterable[EntryId], digest: Digest | None = None
    ) -> Copies:
        """As ``probed``, but an I/O error about one entry is a damaged copy of it, as for ``copies``."""
        probe = await self._probe(bookie, ledger_id, wanted, digest, is_io_error_damage=True)
        return Copies(probe.reply, EntryRuns.of(sorted(probe.unread)), EntryRuns.of(sorted(probe.damaged)))

    async def listed(self, bookie: BookieId, ledger_id: LedgerId) -> ListReply:
        """Return the entries listed by the bookie; UNSUPPORTED if it does not list."""
        for attempt in itertools.count(1):
            reply = await self.transport.ask(bookie, ListEntries(ledger_id), self.timeout_s)
            if not await self._is_again(reply.status, attempt):
                return reply
        raise AssertionError("unreachable: counting has no end")

    async def probed(
        self, bookie: BookieId, ledger_id: LedgerId, wanted: Iterable[EntryId], digest: Digest | None = None
    ) -> ListReply:
        """Read each of ``wanted`` (ascending; consumed as needed) and return the ones on the bookie.

        Without ``digest``, only the ids of an entry are verified.

        OK: the bookie denied every entry not in the list, one by one. LIMBO: some entries are unknown. CORRUPT: each
        entry not in the list is denied, unknown or damaged. Any other status: the result of a read; nothing is known of
        entries outside the list (S6).
        """
        return (await self._probe(bookie, ledger_id, wanted, digest, is_io_error_damage=False)).reply

    async def _probe(
        self,
        bookie: BookieId,
        ledger_id: LedgerId,
        wanted: Iterable[EntryId],
        digest: Digest | None,
        *,
        is_io_error_damage: bool,
    ) -> _Probe:
        probe = _Probe(self, bookie, ledger_id, iter(wanted), digest, is_io_error_damage)
        await all_or_first_error(probe.work() for _ in range(REQUESTS_MAX))
        return probe

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
    digest: Digest | None
    is_io_error_damage: bool
    runs: list[tuple[int, int]] = field(default_factory=list)
    status: Status = Status.OK
    detail: str = ""
    unread: list[EntryId] = field(default_factory=list)
    damaged: list[EntryId] = field(default_factory=list)
    _answered: int = 0
    _bytes: int = 0

    @property
    def reply(self) -> ListReply:
        """The entries served."""
        return ListReply(self.status, EntryRuns.of_runs(self.runs), self.detail)

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
                continue
            # A bookie gives no reason. A reason is of this process, which could not receive the entry.
            is_unread = self.is_io_error_damage and status is Status.IO_ERROR and not result.detail
            if is_unread:
                self.unread.append(entry_id)
            elif status is Status.CORRUPT:
                self.damaged.append(entry_id)
            self._note(status, f"entry {entry_id}", result.detail, is_unread=is_unread)
        self.runs.extend(EntryRuns.of(held).runs)
        rest = chunk[len(reply.results) :]
        if not rest or (reply.status is Status.OK and reply.results):
            return rest
        if reply.results and reply.status in _RETRIED:
            return rest  # it began to answer: another request, with attempts of its own
        status = Status.IO_ERROR if reply.status is Status.OK else reply.status
        self._note(status, f"entries from {rest[0]} on", reply.detail)
        return []

    def _checked(self, entry_id: EntryId, result: EntryResult) -> Status:
        """Return how reading ``entry_id`` went. Any other entry than the requested one is damage."""
        if result.entry_id != entry_id:
            return Status.CORRUPT
        if result.status is not Status.OK:
            return result.status
        try:
            is_it = packet_ids(result.packet) == (self.ledger_id, entry_id)
        except DamagedEntry:
            return Status.CORRUPT
        if not is_it or self.digest is None:
            return Status.OK if is_it else Status.CORRUPT
        return verified(self.digest, self.ledger_id, entry_id, result).status

    def _note(self, status: Status, what: str, why: str = "", *, is_unread: bool = False) -> None:
        """Record one or more entries not served by the bookie. Absent ones are just not among the runs."""
        answer, status = status, Status.CORRUPT if is_unread else status
        is_known = status is self.status or (status is Status.LIMBO and self.status is Status.CORRUPT)
        if status.is_absent or not self._goes_on or is_known:
            return
        damage = "damaged or unreadable: " if is_unread else ""
        self.status, self.detail = status, f"reading {what}: {damage}{answer.name}{f' ({why})' if why else ''}"
