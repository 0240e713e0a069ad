"""The entries of a ledger on a bookie. If the bookie cannot list them, each wanted entry is read instead.

Apache's bookies are not asked for lists, and with ``DbLedgerStorage`` they have none (``bookie.wire.apache.listing``).
A bookie holds every entry that it serves, so reading each entry proves the same as a list (R24: every id, not only the
first and last), but transfers all bytes. Bookies do not verify digests. So if the digest is known, an entry counts as
held only if its bytes are verified here. Entries are dropped after the check; at most ``REQUESTS_MAX`` answers of about
``_TARGET_ANSWER_BYTES`` each are in memory.
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
"""Maximum number of concurrent reads of one ledger from one bookie."""
_TARGET_ANSWER_BYTES: Final = 1 << 20
"""Intended size of the answer to one request. The number of entries is chosen by the mean size of the entries so far.
The transport's own bound is larger."""
_INITIAL_ENTRIES: Final = 16
_BACKOFF_S: Final = 0.25
_NOTHING: Final = EntryRuns(())
_RETRIED: Final = frozenset({Status.TOO_MANY_REQUESTS, Status.TIMEOUT, Status.UNREACHABLE})


@dataclass(frozen=True, slots=True)
class Copies:
    """The copies of a ledger on a bookie."""

    held: ListReply
    """The held entries, as from ``HeldEntriesReader.held``. The status is CORRUPT if any other entry is damaged."""
    unread: EntryRuns = _NOTHING
    """Wanted entries that the bookie could not read: damaged copies."""
    damaged: EntryRuns = _NOTHING
    """Wanted entries whose bytes do not verify."""


@dataclass(frozen=True, slots=True)
class HeldEntriesReader:
    """Asks bookies for the entries that they hold. Each request has its own deadline and few attempts."""

    transport: Transport
    clock: Clock
    timeout_s: float
    attempts_max: int = 1
    """Maximum attempts of a request while the bookie does not answer or is busy; the pauses between them grow."""

    async def held(
        self, bookie: BookieId, ledger_id: LedgerId, wanted: Iterable[EntryId], digest: Digest | None = None
    ) -> ListReply:
        """Return the entries that the bookie lists; if it cannot list, those of ``wanted`` (ascending) that it serves.

        A list may contain more than ``wanted``; see ``probed`` for the other statuses. If a bookie in limbo returns an
        empty list, ``wanted`` is read as well, because the bookie may be unable to list. The status remains LIMBO even
        if it serves all of ``wanted``.
        """
        reply = await self.listed(bookie, ledger_id)
        if reply.status is Status.UNSUPPORTED:
            return await self.probed(bookie, ledger_id, wanted, digest)
        return await self._completed(reply, bookie, ledger_id, wanted, digest)

    async def copies(
        self, bookie: BookieId, ledger_id: LedgerId, wanted: Iterable[EntryId], digest: Digest | None = None
    ) -> Copies:
        """As ``held``, for the repair of a closed ledger: an I/O error for one entry means a damaged copy (R139).

        It is the only answer of Apache's bookies for a damaged entry, and for one whose entry log is lost. The rule
        applies only to a bookie that does not support lists: one that does has a separate answer for damage.
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
        """Return the list in ``reply``. An empty list from a bookie in limbo is replaced by the result of reads."""
        if reply.status is not Status.LIMBO or reply.entries:
            return reply
        probed = await self.probed(bookie, ledger_id, wanted, digest)
        return replace(probed, status=Status.LIMBO) if probed.status is Status.OK else probed

    async def read_copies(
        self, bookie: BookieId, ledger_id: LedgerId, wanted: Iterable[EntryId], digest: Digest | None = None
    ) -> Copies:
        """As ``probed``, but an I/O error for one entry means a damaged copy, as for ``copies``."""
        probe = await self._probe(bookie, ledger_id, wanted, digest, is_io_error_damage=True)
        return Copies(probe.reply, EntryRuns.of_parts(probe.unread), EntryRuns.of_parts(probe.damaged))

    async def listed(self, bookie: BookieId, ledger_id: LedgerId) -> ListReply:
        """Return the entries that the bookie lists; UNSUPPORTED if it does not list."""
        for attempt in itertools.count(1):
            reply = await self.transport.ask(bookie, ListEntries(ledger_id), self.timeout_s)
            if not await self._wait_before_retry(reply.status, attempt):
                return reply
        raise AssertionError("unreachable: counting has no end")

    async def probed(
        self, bookie: BookieId, ledger_id: LedgerId, wanted: Iterable[EntryId], digest: Digest | None = None
    ) -> ListReply:
        """Read each of ``wanted`` (ascending; consumed as needed) and return those that are on the bookie.

        Without ``digest``, only the ids of an entry are verified.

        OK: the bookie denied each of the other entries. LIMBO: some of the others are unknown. CORRUPT: each of the
        others is denied, unknown or damaged. Any other status is the result of a read, and nothing is known about the
        other entries (S6).
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
        """Read entries, and repeat a request without an answer."""
        for attempt in itertools.count(1):
            reply = await self.transport.ask(bookie, Read(ledger_id, entry_ids), self.timeout_s)
            if reply.results or not await self._wait_before_retry(reply.status, attempt):
                return reply
        raise AssertionError("unreachable: counting has no end")

    async def _wait_before_retry(self, status: Status, attempt: int) -> bool:
        if status not in _RETRIED or attempt >= self.attempts_max:
            return False
        await self.clock.sleep(_BACKOFF_S * 2**attempt)
        return True


@dataclass(slots=True)
class _Probe:
    """The state of one probe, shared by its concurrent reads."""

    to: HeldEntriesReader
    bookie: BookieId
    ledger_id: LedgerId
    wanted: Iterator[EntryId]
    digest: Digest | None
    is_io_error_damage: bool
    held: list[EntryRuns] = field(default_factory=list)
    """The entries served by each read. Each read covers a section of ``wanted``, so these sets do not interleave, and
    a striped ledger with millions of entries needs little memory and time."""
    unread: list[EntryRuns] = field(default_factory=list)
    damaged: list[EntryRuns] = field(default_factory=list)
    status: Status = Status.OK
    detail: str = ""
    _answered: int = 0
    _bytes: int = 0

    @property
    def reply(self) -> ListReply:
        """The entries served."""
        return ListReply(self.status, EntryRuns.of_parts(self.held), self.detail)

    async def work(self) -> None:
        """Read entries from the iterator until it is exhausted, or until a read shows that the rest remains unknown."""
        while self._may_continue and (chunk := list(itertools.islice(self.wanted, self._chunk_entries()))):
            while chunk and self._may_continue:
                chunk = await self._read(chunk)

    @property
    def _may_continue(self) -> bool:
        return self.status in (Status.OK, Status.LIMBO, Status.CORRUPT)

    def _chunk_entries(self) -> int:
        if not self._answered:
            return _INITIAL_ENTRIES
        mean = max(1, self._bytes // self._answered)
        return max(1, min(_TARGET_ANSWER_BYTES // mean, READ_ENTRIES_MAX))

    async def _read(self, chunk: list[EntryId]) -> list[EntryId]:
        """Read the part of ``chunk`` that fits into one answer; return the rest."""
        reply = await self.to.read(self.bookie, self.ledger_id, chunk)
        held: list[EntryId] = []
        unread: list[EntryId] = []
        damaged: list[EntryId] = []
        for entry_id, result in zip(chunk, reply.results, strict=False):
            status = self._checked(entry_id, result)
            self._answered += 1
            self._bytes += len(result.packet)
            if status is Status.OK:
                held.append(entry_id)
                continue
            # Bookies send no reason. A reason comes from this process, which could not receive the entry.
            is_unread = self.is_io_error_damage and status is Status.IO_ERROR and not result.detail
            if is_unread:
                unread.append(entry_id)
            elif status is Status.CORRUPT:
                damaged.append(entry_id)
            self._note(status, f"entry {entry_id}", result.detail, is_unread=is_unread)
        for parts, entries in ((self.held, held), (self.unread, unread), (self.damaged, damaged)):
            if entries:
                parts.append(EntryRuns.of(entries))
        rest = chunk[len(reply.results) :]
        if not rest or (reply.status is Status.OK and reply.results):
            return rest
        if reply.results and reply.status in _RETRIED:
            return rest  # the bookie answered a part: the next request has new attempts
        status = Status.IO_ERROR if reply.status is Status.OK else reply.status
        self._note(status, f"entries from {rest[0]} on", reply.detail)
        return []

    def _checked(self, entry_id: EntryId, result: EntryResult) -> Status:
        """Return the status of the read of ``entry_id``. Any other entry than the requested one counts as damage."""
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
        """Record the status of entries that the bookie did not serve. Absent entries need no record."""
        answer, status = status, Status.CORRUPT if is_unread else status
        is_known = status is self.status or (status is Status.LIMBO and self.status is Status.CORRUPT)
        if status.is_absent or not self._may_continue or is_known:
            return
        damage = "damaged or unreadable: " if is_unread else ""
        self.status, self.detail = status, f"reading {what}: {damage}{answer.name}{f' ({why})' if why else ''}"
