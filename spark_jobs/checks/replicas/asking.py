"""Ask bookies for their entries, and judge the answers.

Uses only the transport and store ports; runs inside an executor.

One denial is never enough (S13). The ledger may have been deleted or moved since its metadata was read, so the metadata
is read again, and the denying bookies are asked again: an entry is absent if a bookie should hold it by the newer
metadata and denies it twice. Every other failure of a bookie is reported as unknown (S6).

A bookie of Apache's is not asked for a list unless the operator permits it
(docs/decisions/0068-apaches-bookies-are-not-asked-for-lists.md), and with DbLedgerStorage it has no list. It is asked
for the first and the last entry of each of its positions, as in Apache's own check by default
(docs/formats.md#sampling). If it serves both, the entries between them count as present. Ledgers checked only by such a
sample are counted separately, because a complete list is better evidence.

If the ledger is closed, an I/O error for an entry of the sample means a damaged copy, because Apache's bookies have no
other answer for one (R139). The bookie must give this answer twice, the second time some seconds later, because a disk
may fail to read for a moment. If a bookie can read no entry of the samples of many consecutive ledgers, its disk is the
likely cause, and its I/O errors count as unknown.

The requests in flight to one bookie and the ledgers in flight in total are bounded, and each request has a deadline and
few attempts. After several consecutive ledgers without an answer, a bookie gets no more requests for the rest of the
task; tasks are short. The ledgers that wait for a second look are at most those of one batch.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, Protocol

from bookie.client.held_entries import HeldEntriesReader
from bookie.metadata.ledgers.ledgers import Versioned
from bookie.metadata.ledgers.serde import UnreadableMetadataError
from bookie.metadata.port import AccessDeniedError
from bookie.metadata.tasks.decisions import Decision, LostFragment
from bookie.model.availability import EntryRuns
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.runtime.clock import Clock
from bookie.runtime.waiting import all_or_first_error
from bookie.wire.port import Status, Transport
from spark_jobs.checks.replicas.expected import SettledLedger, settled_metadata
from spark_jobs.checks.replicas.verdict import FragmentFinding, Holdings, findings

LEDGERS_IN_FLIGHT: Final = 64
PER_BOOKIE_IN_FLIGHT: Final = 16
LIST_TIMEOUT_S: Final = 10.0
ATTEMPTS_MAX: Final = 3
SILENT_LEDGERS_MAX: Final = 3
"""Consecutive ledgers without an answer before a bookie gets no more requests."""
UNREAD_LEDGERS_MAX: Final = 20
"""Consecutive ledgers of whose sample a bookie can read no entry before its I/O errors count as unknown."""
READ_AGAIN_AFTER_S: Final = 10.0
"""Pause before an entry that a bookie could not read is read again, once for all ledgers."""
_DETAIL_MAX: Final = 200
"""Number of characters of a detail that are kept."""
_BACKOFF_S: Final = 0.25
_RETRIED: Final = frozenset({Status.TOO_MANY_REQUESTS, Status.TIMEOUT, Status.UNREACHABLE})
_SILENCE: Final = frozenset({Status.TIMEOUT, Status.UNREACHABLE, Status.UNRESOLVED})
_SURE_STATUSES: Final = frozenset({Status.OK, Status.NO_LEDGER, Status.NO_ENTRY})
"""Answers of a healthy bookie: entries outside the list are absent."""
_NOTHING: Final = EntryRuns(())
AcceptedEntries = Mapping[LedgerId, Mapping[EntryId, LostFragment]]
"""The accepted losses that name the lost entries, by ledger, and by the first entry of their fragment."""
ReadDecision = Callable[[LedgerId], Awaitable[Decision | None]]
"""Returns the present decision about a ledger."""
_LACKING_STATUSES: Final = _SURE_STATUSES | {Status.CORRUPT}
"""Answers of a bookie that cannot serve entries outside the list: these are absent or damaged (R105)."""
_LISTS: Final = _LACKING_STATUSES | {Status.LIMBO}
"""Answers with a valid list. A bookie in limbo has the listed entries; the others are unknown."""


@dataclass(frozen=True, slots=True)
class LedgerAnswer:
    """One bookie's answer about a ledger."""

    status: Status
    entries: EntryRuns = _NOTHING
    """The listed entries; for a sampled bookie, all entries not excluded by the sample."""
    is_sampled: bool = False
    is_of_unclosed: bool = False
    is_unread: bool = False
    """Whether an Apache bookie could not read some entry of the sample (R139)."""
    detail: str = ""
    """The reason for an unknown answer, from the bookie or the transport."""

    @property
    def has_valid_entries(self) -> bool:
        """Whether ``entries`` is valid. A sample of an unclosed ledger with a damaged entry proves nothing."""
        return self.status in _LISTS and not (self.is_of_unclosed and self.is_sampled and self.status is Status.CORRUPT)

    @property
    def is_sure(self) -> bool:
        """Whether the bookie cannot serve any entry outside its list."""
        return self.has_valid_entries and self.status in _LACKING_STATUSES


class LedgerReaderPort(Protocol):
    """The part of ``LedgerStore`` that is used here."""

    async def current(self, ledger_id: LedgerId) -> Versioned | None:
        """Return the current metadata of a ledger; None: it does not exist.

        Raises:
            UnreadableMetadataError, AccessDeniedError: it cannot be read.
        """
        ...


@dataclass(slots=True)
class Answers:
    """The results of asking bookies for the entries of some ledgers."""

    found: list[tuple[SettledLedger, tuple[FragmentFinding, ...]]] = field(default_factory=list)
    """Ledgers with findings."""
    ledgers: int = 0
    requests: int = 0
    """Requests for lists, and for samples if a bookie has no list."""
    expected: int = 0
    absent: int = 0
    vanished: int = 0
    """Ledgers that a bookie denied and that turned out to be deleted, which is normal (S15)."""
    unknown: defaultdict[tuple[BookieId, str], int] = field(default_factory=lambda: defaultdict(int))
    """Number of ledgers with an unknown answer, by bookie and status."""
    details: dict[tuple[BookieId, str], str] = field(default_factory=dict)
    """The first detail of an unknown answer, by bookie and status."""
    sampled: defaultdict[BookieId, int] = field(default_factory=lambda: defaultdict(int))
    """Number of ledgers judged by a sample instead of a list, by bookie."""


class Asker:
    """Asks bookies for the entries of ledgers, with common bounds for all ledgers. Belongs to one event loop."""

    def __init__(
        self,
        transport: Transport,
        ledgers: LedgerReaderPort,
        registered: Callable[[], Awaitable[AbstractSet[BookieId]]],
        clock: Clock,
        accepted: AcceptedEntries = MappingProxyType({}),
        decision: ReadDecision | None = None,
    ) -> None:
        """Prepare; no request is sent yet.

        Args:
            transport: sends requests to the bookies.
            ledgers: reads the metadata again for the second look at a ledger.
            registered: lists the registered bookies; the list is not older than the call.
            clock: for pauses between attempts.
            accepted: the losses of entries that operators accepted.
            decision: reads the decision about a ledger again for the second look, because workers and operators change
                it. None: ``accepted`` is present.
        """
        self._accepted = accepted
        self._read_decision = decision
        self._held = HeldEntriesReader(transport, clock, LIST_TIMEOUT_S)
        self._ledgers = ledgers
        self._list_registered = registered
        self._clock = clock
        self._slots: defaultdict[BookieId, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(PER_BOOKIE_IN_FLIGHT)
        )
        self._silent: defaultdict[BookieId, list[LedgerAnswer]] = defaultdict(list)
        """For each bookie, the results for its last consecutive ledgers without an answer."""
        self._unread: defaultdict[BookieId, int] = defaultdict(int)
        """For each bookie, the number of its last consecutive ledgers with I/O errors of which it could read no
        entry."""

    async def ask_all(self, ledgers: Iterable[SettledLedger], registered: AbstractSet[BookieId]) -> Answers:
        """Ask for all of ``ledgers``, in no particular order.

        Args:
            ledgers: the ledgers with their expected entries.
            registered: bookies to ask, listed after reading the metadata of ``ledgers``.

        Raises:
            StoreUnavailableError: no answer from the metadata store.
        """
        answers = Answers()
        remaining = iter(ledgers)
        later: list[tuple[SettledLedger, Mapping[BookieId, LedgerAnswer]]] = []

        async def work() -> None:
            for ledger in remaining:
                answers.ledgers += 1
                replies = await self._list_all(ledger, registered, ledger.holders(), answers)
                deniers = _deniers(ledger, replies)
                if not deniers:
                    self._count(ledger, replies, answers)
                elif any(replies[bookie].is_unread for bookie in deniers):
                    later.append((ledger, replies))
                else:
                    await self._check_again(ledger, replies, frozenset(), answers)

        await all_or_first_error(work() for _ in range(LEDGERS_IN_FLIGHT))
        if later:
            await self._reread_later(later, answers)
        return answers

    async def _reread_later(
        self, ledgers: Sequence[tuple[SettledLedger, Mapping[BookieId, LedgerAnswer]]], answers: Answers
    ) -> None:
        """Look again, after a pause, at ledgers with entries that their bookies could not read.

        Whether a bookie is failing is decided by the first answers. A bookie that could not read many ledgers in
        sequence, but could read later ones, does not count as failing.
        """
        failing = frozenset(bookie for bookie, count in self._unread.items() if count >= UNREAD_LEDGERS_MAX)
        await self._clock.sleep(READ_AGAIN_AFTER_S)
        remaining = iter(ledgers)

        async def work() -> None:
            for ledger, replies in remaining:
                await self._check_again(ledger, replies, failing, answers)

        await all_or_first_error(work() for _ in range(LEDGERS_IN_FLIGHT))

    async def _check_again(
        self,
        ledger: SettledLedger,
        replies: Mapping[BookieId, LedgerAnswer],
        failing: AbstractSet[BookieId],
        answers: Answers,
    ) -> None:
        """Judge a ledger by its current metadata and by second answers of the denying bookies."""
        try:
            current = await self._ledgers.current(ledger.ledger_id)
        except (UnreadableMetadataError, AccessDeniedError):
            return  # the next run reports it, because it reads the current metadata
        if current is None:
            answers.vanished += 1
            return
        newest = settled_metadata(ledger.ledger_id, current.metadata)
        now_registered = await self._list_registered()
        deniers = _deniers(newest, replies)
        again = [bookie for bookie in newest.holders() if bookie not in replies or bookie in deniers]
        kept = {bookie: reply for bookie, reply in replies.items() if bookie in now_registered}
        second = await self._list_all(newest, now_registered, again, answers)
        unread = {bookie for bookie in again if bookie in replies and replies[bookie].is_unread}
        replies = kept | {
            bookie: _doubtful_as_unknown(reply, is_second=bookie in unread, is_failing=bookie in failing)
            for bookie, reply in second.items()
        }
        self._count(newest, replies, answers)
        accepted = await self._accepted_of(current)
        if found := tuple(findings(newest, _holdings(newest, replies), accepted)):
            answers.absent += sum(each.absent for each in found)
            answers.found.append((newest, found))

    async def _accepted_of(self, ledger: Versioned) -> Mapping[EntryId, LostFragment]:
        """Return the accepted losses of a ledger that name the lost entries.

        A decision that may not be read any more accepts nothing, as in the list of decisions.
        """
        known = self._accepted.get(ledger.ledger_id, {})
        if not known or self._read_decision is None:
            return known
        try:
            decision = await self._read_decision(ledger.ledger_id)
        except AccessDeniedError:
            return {}
        if decision is None or not decision.is_accepted or not decision.is_of(ledger.metadata):
            return {}
        return losses_by_first_entry(decision.lost)

    def _count(self, ledger: SettledLedger, replies: Mapping[BookieId, LedgerAnswer], answers: Answers) -> None:
        for bookie, reply in replies.items():
            answers.expected += ledger.expected(bookie)
            if not reply.is_sure and not ledger.is_whole(bookie, reply.entries):
                answers.unknown[bookie, reply.status.name] += 1
                if reply.detail:
                    answers.details.setdefault((bookie, reply.status.name), reply.detail[:_DETAIL_MAX])
            elif reply.is_sampled:
                answers.sampled[bookie] += 1

    async def _list_all(
        self, ledger: SettledLedger, registered: AbstractSet[BookieId], bookies: Sequence[BookieId], answers: Answers
    ) -> dict[BookieId, LedgerAnswer]:
        asked = [bookie for bookie in bookies if bookie in registered]
        replies = await asyncio.gather(*(self._ask_with_retries(bookie, ledger, answers) for bookie in asked))
        return dict(zip(asked, replies, strict=True))

    async def _ask_with_retries(self, bookie: BookieId, ledger: SettledLedger, answers: Answers) -> LedgerAnswer:
        async with self._slots[bookie]:
            silent = self._silent[bookie]
            for attempt in range(1, ATTEMPTS_MAX + 1):
                if len(silent) >= SILENT_LEDGERS_MAX:
                    return silent[-1]
                answers.requests += 1
                found = await self._ask_bookie(bookie, ledger, answers)
                if found.status not in _RETRIED or attempt == ATTEMPTS_MAX:
                    break
                await self._clock.sleep(_BACKOFF_S * 2**attempt)
            if not found.has_valid_entries:
                found = replace(found, entries=_NOTHING)
            if found.status in _SILENCE:
                silent.append(found)
            else:
                silent.clear()
        return found

    async def _ask_bookie(self, bookie: BookieId, ledger: SettledLedger, answers: Answers) -> LedgerAnswer:
        reply = await self._held.listed(bookie, ledger.ledger_id)
        if reply.status is not Status.UNSUPPORTED:
            return LedgerAnswer(reply.status, reply.entries, detail=reply.detail)
        answers.requests += 1
        sample = ledger.sample(bookie)
        is_unread = False
        if ledger.is_closed:
            copies = await self._held.read_copies(bookie, ledger.ledger_id, sample)
            read, is_unread = copies.held, bool(copies.unread)
        else:
            read = await self._held.probed(bookie, ledger.ledger_id, sample)
        if read.entries:
            self._unread[bookie] = 0
        elif is_unread:
            self._unread[bookie] += 1
        missing = [entry_id for entry_id in sample if entry_id not in read.entries]
        return LedgerAnswer(
            read.status,
            ledger.all_entries_except(missing),
            is_sampled=True,
            is_of_unclosed=not ledger.is_closed,
            is_unread=is_unread,
            detail=read.detail,
        )


def losses_by_first_entry(lost: Iterable[LostFragment]) -> dict[EntryId, LostFragment]:
    """Return the losses that name the lost entries by their ids."""
    return {loss.first_entry_id: loss for loss in lost if loss.entries}


def _doubtful_as_unknown(reply: LedgerAnswer, *, is_second: bool, is_failing: bool) -> LedgerAnswer:
    """Return the answer with a doubtful I/O error changed to unknown.

    An I/O error is doubtful if it is the first one for this ledger, or if the bookie is failing.
    """
    if not reply.is_unread or (is_second and not is_failing):
        return reply
    detail = f"cannot read its entries: check its disk ({reply.detail})" if is_failing else reply.detail
    return replace(reply, status=Status.IO_ERROR, entries=_NOTHING, detail=detail)


def _deniers(ledger: SettledLedger, replies: Mapping[BookieId, LedgerAnswer]) -> set[BookieId]:
    return {bookie for bookie, reply in replies.items() if reply.is_sure and not ledger.is_whole(bookie, reply.entries)}


def _holdings(ledger: SettledLedger, replies: Mapping[BookieId, LedgerAnswer]) -> Mapping[BookieId, Holdings]:
    """Return the answers of the bookies with expected entries; other bookies cannot lack any."""
    return {
        bookie: Holdings(
            replies[bookie].entries,
            is_sure=replies[bookie].is_sure,
            is_damaged=replies[bookie].status is Status.CORRUPT,
            is_sampled=replies[bookie].is_sampled,
            why=replies[bookie].detail[:_DETAIL_MAX] if replies[bookie].is_sampled else "",
        )
        for bookie in ledger.holders()
        if bookie in replies
    }
