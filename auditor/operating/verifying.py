"""Verifies the copies of ledgers: reads every entry on each registered bookie that the metadata names.

The invariant: a registered bookie is marked only for copies that it returned damaged, or denied. If it does not answer,
or answers with limbo or a similar status, its copies are unknown (S6).

Entries are read also from bookies that can list them, because a list does not prove that the bytes are intact. An I/O
error for one entry means a damaged copy only if the ledger is closed and the bookie cannot list entries, as for a
repair (R139). Otherwise the copy is unknown.

Only ``mark`` changes anything. A mark is a hint for the replicators, which check the bookie's entries again.

R rules are defined in docs/failure-model.md, S rules in docs/invariants.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final

from typing_extensions import override

from auditor.operating.client import Actor, ClusterClient, Document
from auditor.operating.ledger_copies import (
    EntryRanges,
    EntryWindow,
    FoundCopies,
    LedgerCopies,
    accepted_entries,
    copies_count,
    judged_end,
    states,
    windows,
)
from auditor.safety.recovering import brake
from auditor.safety.scan import Advance
from bookie.client.access import recorded_digest
from bookie.client.held_entries import HeldEntriesReader
from bookie.metadata.bookies.drains import Drains
from bookie.metadata.bookies.first_seen_down import FirstSeenDown
from bookie.metadata.bookies.maintenance import MaintenanceWindows
from bookie.metadata.bookies.registration import MISSING_SHARE_MAX, Bookies, BookieState
from bookie.metadata.ledgers.ledgers import Versioned
from bookie.metadata.tasks.decisions import Decision, Decisions
from bookie.metadata.tasks.format import UnreadableTaskError
from bookie.metadata.tasks.switches import InvalidDelayError
from bookie.model.digest import Digest
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import DigestType, LedgerMetadata
from bookie.runtime.human import agreeing, counted
from bookie.runtime.waiting import all_or_first_error
from bookie.wire.port import AddBatch, AddReply, ListReply, ReadReply, ReplyT, Request, Status, Transport
from bookie.wire.requests import Read
from replicator.copying.throttle import Throttle
from replicator.knowledge.holdings import HoldingsReader

BYTES_PER_SECOND_DEFAULT: Final = 32 << 20
"""Default rate: a few percent of the rate of disks and networks, so that clients are hardly delayed."""
REQUEST_TIMEOUT_S: Final = 15.0
_ATTEMPTS_MAX: Final = 3
"""Attempts for a request that a bookie does not answer, or refuses because it is busy."""
_CONCURRENT_BOOKIES_MAX: Final = 4
"""Bookies of one ledger that are read at a time, each with at most two requests under way."""
_CONTINUABLE_STATUSES: Final = frozenset({Status.OK, Status.LIMBO, Status.CORRUPT, Status.IO_ERROR})
"""Answers after which a bookie receives requests for further entries of the ledger."""
_LISTS: Final = frozenset({Status.OK, Status.LIMBO, Status.CORRUPT})


@dataclass(slots=True)
class VerifiedLedger:
    """The result for one ledger."""

    ledger: Versioned
    copies: LedgerCopies
    judged_end: EntryId | None
    """The first entry that is not judged; None if all are."""
    is_changed: bool = False
    """Whether the metadata changed, or was deleted, while the copies were read."""
    bad: tuple[BookieId, ...] = ()
    """The bookies to mark; empty if the ledger was deleted."""
    held_back: dict[BookieId, str] = field(default_factory=dict)
    """Bookies that are not to be marked, with the reason: lost ones, and those whose absent entries are accepted."""

    @property
    def is_digest_verified(self) -> bool:
        """Whether a digest of the entries is verified, and not only their ids."""
        return self.ledger.metadata.digest_type not in (None, DigestType.DUMMY)


class Verifier:
    """Verifies ledgers, one after the other, with a common limit of bytes per second (0: none)."""

    def __init__(self, client: ClusterClient, bytes_per_second: int = BYTES_PER_SECOND_DEFAULT) -> None:
        self._client = client
        self._throttle = Throttle(client.ports.clock, bytes_per_second)

    async def verify(
        self, ledger_id: LedgerId, counting: Callable[[int], AbstractContextManager[Advance]]
    ) -> VerifiedLedger:
        """Read all judged copies of a ledger. Changes nothing.

        Args:
            ledger_id: the ledger.
            counting: shows the progress for a number of copies.

        Raises:
            NoSuchLedgerError: it does not exist.
            UnreadableMetadataError: its metadata cannot be read.
            StoreUnavailableError: no answer.
        """
        ports, drains = self._client.ports, Drains(self._client.store, self._client.cluster.root)
        ledger = await ports.ledgers.read(ledger_id)
        bookies = await ports.registrations.list()  # read after the metadata (R2)
        of = states(ledger.metadata, bookies, (await drains.read()).keys())
        holdings = HoldingsReader(ports.transport, ports.clock)
        is_tail_written = not ledger.metadata.is_closed and await holdings.is_tail_written(ledger, bookies)
        accepted = await self._accepted(ledger, bookies)
        losses = () if accepted is None else accepted.lost
        copies = LedgerCopies(accepted_entries(losses), [loss for loss in losses if not loss.entries])
        result = VerifiedLedger(ledger, copies, judged_end(ledger.metadata, is_tail_written=is_tail_written))
        total = copies_count(ledger.metadata, bookies.registered, is_tail_written=is_tail_written)
        with counting(total) as advance:
            transport = _PacedReads(ports.transport, self._throttle, advance)
            held = HeldEntriesReader(transport, ports.clock, REQUEST_TIMEOUT_S, _ATTEMPTS_MAX)
            members = {
                bookie: _Member(bookie, ledger, held) for bookie in ledger.metadata.members() & bookies.registered
            }
            for window in windows(ledger.metadata, is_tail_written=is_tail_written):
                result.copies.add(window, await _read(window, members), of)
        await self._find_bad(result, bookies)
        return result

    async def _find_bad(self, result: VerifiedLedger, bookies: Bookies) -> None:
        """Determine the bookies to mark, by the present metadata."""
        ledger = result.ledger
        now = await self._client.ports.ledgers.current(ledger.ledger_id)
        result.is_changed = now is None or now.version != ledger.version
        if now is None:
            return
        named = [each for each in result.copies.bookies.values() if each.bookie in now.metadata.members()]
        lost = [each.bookie for each in named if each.is_lost]
        held_back = await self._held_back(ledger, lost, bookies) if lost else {}
        bad = {each.bookie for each in named if result.copies.is_repairable(each)} | set(lost) - held_back.keys()
        accepted = [each.bookie for each in named if each.is_bad and not result.copies.is_repairable(each)]
        result.held_back = held_back | dict.fromkeys(accepted, "the loss of its absent entries was accepted")
        result.bad = tuple(sorted(bad))

    async def _accepted(self, ledger: Versioned, bookies: Bookies) -> Decision | None:
        """Return the accepted loss of this ledger if it is valid."""
        decision = await Decisions(self._client.store, self._client.cluster.root).get(ledger.ledger_id)
        is_accepted = decision is not None and decision.is_accepted and decision.is_of(ledger.metadata)
        return decision if decision is not None and is_accepted and decision.is_valid(bookies.registered) else None

    async def _held_back(self, ledger: Versioned, lost: Sequence[BookieId], before: Bookies) -> dict[BookieId, str]:
        """Return the bookies among ``lost`` that an auditor would hold back now, with the reason."""
        ports, store, root = self._client.ports, self._client.store, self._client.cluster.root
        known, present = await ports.registrations.known(), await ports.registrations.list()
        if brake(known | before.registered, present, MISSING_SHARE_MAX) is not None:
            return dict.fromkeys(lost, "too many bookies are missing (the brake is held)")
        now_ms = ports.clock.epoch_ms()
        decision = await self._accepted(ledger, present)
        accepted = frozenset() if decision is None else decision.copies
        opened = await MaintenanceWindows(store, root).open_at(now_ms)
        in_maintenance = {bookie for window in opened for bookie in window.bookies}
        noted = await FirstSeenDown(store, root).read()
        try:
            delay_s = await ports.tasks.switches.lost_bookie_delay_s()
        except InvalidDelayError as error:
            return dict.fromkeys(lost, str(error))
        reasons = {}
        for bookie in lost:
            down = noted.get(bookie)
            is_awaited = bookie in known and delay_s > 0 if down is None else down.due_ms(delay_s) > now_ms
            if bookie in present.registered:
                reasons[bookie] = "it has returned"
            elif _positions(ledger.metadata, bookie) <= accepted:
                reasons[bookie] = "the loss of its copies was accepted"
            elif bookie in in_maintenance:
                reasons[bookie] = "it is in maintenance"
            elif is_awaited:
                reasons[bookie] = "its lost-bookie delay has not passed"
        return reasons


async def mark(client: ClusterClient, actor: Actor, result: VerifiedLedger) -> str:
    """Add the bad bookies to the ledger's task.

    Return the outcome: ``marked``, ``marked_already``, ``nothing`` or ``unreadable_task``.

    Raises:
        StoreUnavailableError, WriteOutcomeUnknownError, ConflictError: perhaps not marked; verify and mark again.
    """
    if not result.bad:
        return "nothing"
    ledger_id = result.ledger.ledger_id
    await actor.record(client, "ledger verify", f"ledger {ledger_id}: {', '.join(result.bad)}")
    try:
        return "marked" if await client.ports.tasks.marking.mark(ledger_id, result.bad) else "marked_already"
    except UnreadableTaskError:
        return "unreadable_task"


def verified_document(result: VerifiedLedger, outcome: str | None) -> Document:
    """Return the result as a document. Pure.

    Args:
        result: of one ledger.
        outcome: the result of ``mark``; ``unknown`` if it raised an error, None if it was not called.
    """
    metadata, copies = result.ledger.metadata, result.copies
    verdict = "bad" if copies.is_bad else "unknown" if copies.is_unknown else "good"
    return {
        "ledger_id": result.ledger.ledger_id,
        "state": metadata.state.name,
        "verdict": verdict,
        "digest_type": None if metadata.digest_type is None else metadata.digest_type.name,
        "verified": "digest" if result.is_digest_verified else "ids",
        "entries": copies.entries,
        "not_judged_from": result.judged_end,
        "metadata_changed": result.is_changed,
        "bookies": [
            {
                "bookie_id": each.bookie,
                "state": each.state,
                "expected": each.expected,
                "good": each.good,
                "damaged": each.damaged.count,
                "absent": each.absent.count,
                "unknown": each.unknown,
                "damaged_ranges": _ranges(each.damaged),
                "absent_ranges": _ranges(each.absent),
                "ranges_cut": each.damaged.is_cut or each.absent.is_cut,
                "damage_listed": each.is_damage_listed,
                "detail": each.detail or None,
            }
            for each in sorted(copies.bookies.values(), key=lambda each: each.bookie)
        ],
        "without_good_copy": {
            "entries": copies.without_good.count,
            "ranges": _ranges(copies.without_good),
            "ranges_cut": copies.without_good.is_cut,
            "perhaps_on": sorted(copies.perhaps_on),
        },
        "mark": {
            "outcome": outcome or ("would_mark" if result.bad else "nothing"),
            "bookies": list(result.bad),
            "held_back": [{"bookie_id": name, "reason": why} for name, why in sorted(result.held_back.items())],
        },
    }


def heading(row: Document) -> str:
    """Return the line above the table of a ledger. Pure."""
    what = f"its digest ({row['digest_type']})" if row["verified"] == "digest" else "its ids only"
    entries = counted(row["entries"], "entry")
    return f"ledger {row['ledger_id']} ({row['state']}): {entries}; each copy is compared with {what}"


def verified_lines(row: Document) -> list[str]:
    """Return the lines below the table of a ledger. Pure."""
    lines = []
    for each in row["bookies"]:
        for kind in ("damaged", "absent"):
            if each[kind]:
                lines.append(f"{each['bookie_id']}: {kind}: {_ranges_text(each[f'{kind}_ranges'], each[kind])}")
        if each["unknown"] and each["detail"]:
            lines.append(f"{each['bookie_id']}: unknown: {each['detail']}")
    if row["verified"] == "ids":
        why = "its digest type is DUMMY" if row["digest_type"] else "its metadata has format 1, without a digest type"
        lines.append(f"only the ids of entries are verified ({why}): wrong bytes after them are not found")
    if row["not_judged_from"] is not None:
        lines.append(
            f"the ledger is not closed: entries from {row['not_judged_from']} on may still change, and are not judged"
        )
    if row["metadata_changed"]:
        lines.append("the metadata changed during the verification: verify the ledger again")
    lines.append(_without_good_text(row["without_good_copy"], row["entries"], row["verdict"]))
    return [*lines, *_mark_lines(row)]


def _without_good_text(without: Document, entries: int, verdict: str) -> str:
    if not without["entries"]:
        if verdict == "good" or not entries:
            return "every copy is good" if entries else "there is no copy to verify"
        return "every entry has a good copy"
    text = (
        f"{counted(without['entries'], 'entry')} (id {_ids_text(without['ranges'], without['entries'])}) "
        f"{agreeing(without['entries'], 'has', 'have')} no good copy on the bookies that answered"
    )
    if without["perhaps_on"]:
        return f"{text}; {', '.join(without['perhaps_on'])} may have one"
    return f"{text}; all bookies that should have one answered"


def _mark_lines(row: Document) -> list[str]:
    marking = row["mark"]
    names, ledger_id = ", ".join(marking["bookies"]), row["ledger_id"]
    states = {each["bookie_id"]: each["state"] for each in row["bookies"]}
    lines = []
    for each in marking["held_back"]:
        is_lost = "lost and " if states[each["bookie_id"]] == BookieState.UNREGISTERED.label else ""
        lines.append(f"{each['bookie_id']} is {is_lost}not to be marked: {each['reason']}")
    match marking["outcome"]:
        case "would_mark":
            lines.append(f"nothing was changed; --mark would mark ledger {ledger_id} for repair of {names}")
        case "marked":
            lines.append(f"marked for repair of {names}: see `bkheal underreplicated list`")
        case "marked_already":
            lines.append(f"marked for repair of {names} already: see `bkheal underreplicated list`")
        case "unknown":
            lines.append(f"it is unknown whether the ledger is marked for repair of {names}: verify and mark it again")
        case "unreadable_task":
            lines.append("the task of the ledger cannot be read, so it was left as it is; it marks the ledger")
    damaged = [each for each in row["bookies"] if each["damaged"]]
    if damaged and row["state"] != "CLOSED":
        lines.append(
            "a repair does not verify the copies of a ledger that is not closed: verify and mark it again after its end"
        )
    if listed := [each["bookie_id"] for each in damaged if each["damage_listed"]]:
        lines.append(
            f"{', '.join(listed)} {agreeing(len(listed), 'lists', 'list')} damaged entries as good, and a repair "
            "believes a list: run `bkheal bookie scrub --at BOOKIE --start`, which replaces damaged entries"
        )
    return lines


def _ranges(ranges: EntryRanges) -> list[Document]:
    return [{"first": each.first, "last": each.last, "entries": each.entries} for each in ranges.kept]


def _ids_text(ranges: Sequence[Document], count: int) -> str:
    """Return ranges of consecutive ids as text."""
    parts = [str(each["first"]) if each["entries"] == 1 else f"{each['first']}-{each['last']}" for each in ranges]
    more = count - sum(each["entries"] for each in ranges)
    return ", ".join(parts) + (f" and {more} more" if more else "")


def _ranges_text(ranges: Sequence[Document], count: int) -> str:
    parts = [
        str(each["first"]) if each["entries"] == 1 else f"{each['first']}-{each['last']} ({each['entries']})"
        for each in ranges
    ]
    more = count - sum(each["entries"] for each in ranges)
    return ", ".join(parts) + (f" and {more} more" if more else "")


def _positions(metadata: LedgerMetadata, bookie: BookieId) -> set[tuple[EntryId, int, BookieId]]:
    return {
        (fragment.first_entry_id, position, bookie)
        for fragment in metadata.fragments
        for position, member in enumerate(fragment.members)
        if member == bookie
    }


async def _read(window: EntryWindow, members: Mapping[BookieId, _Member]) -> dict[BookieId, FoundCopies]:
    """Read a window from each of ``members``; the result omits other bookies."""
    places = asyncio.Semaphore(_CONCURRENT_BOOKIES_MAX)
    found: dict[BookieId, FoundCopies] = {}

    async def read(member: _Member, placed: Sequence[EntryId]) -> None:
        async with places:
            found[member.bookie] = await member.read(placed)

    asked = [(members[bookie], placed) for bookie, placed in window.placed.items() if bookie in members]
    await all_or_first_error(read(member, placed) for member, placed in asked)
    return found


@dataclass(slots=True)
class _Member:
    """A registered bookie whose copies of a ledger are read."""

    bookie: BookieId
    ledger: Versioned
    held: HeldEntriesReader
    silence: str = ""
    """Why it receives no more requests; empty as long as it does."""
    listed: ListReply | None = None
    """Its list of entries, requested only if some entries are damaged or cannot be read."""

    async def read(self, placed: Sequence[EntryId]) -> FoundCopies:
        """Read entries."""
        if self.silence:
            return FoundCopies(detail=self.silence)
        good: set[EntryId] = set()
        damaged: set[EntryId] = set()
        unread: set[EntryId] = set()
        rest, reply = placed, ListReply(Status.CORRUPT)
        for _ in range(2):  # an answer with damage leaves other entries unknown, so they are read again
            copies = await self.held.read_copies(self.bookie, self.ledger.ledger_id, rest, self._digest)
            reply = copies.held
            good.update(reply.entries)
            damaged.update(copies.damaged)
            unread.update(copies.unread)
            known = good | damaged | unread
            rest = [entry_id for entry_id in rest if entry_id not in known]
            if not rest or reply.status is not Status.CORRUPT:
                break
        detail = "" if not rest or reply.status is Status.OK else reply.detail or reply.status.name
        if reply.status not in _CONTINUABLE_STATUSES:
            self.silence = detail
        absent = frozenset(rest) if reply.status is Status.OK else frozenset[EntryId]()
        if damaged or unread:
            self.listed = self.listed or await self.held.listed(self.bookie, self.ledger.ledger_id)
            if self.ledger.metadata.is_closed and self.listed.status is Status.UNSUPPORTED:
                damaged |= unread
            elif unread:
                detail = detail or f"reading entry {min(unread)}: IO_ERROR"
        return FoundCopies(good, damaged, absent, detail, self._lists_some(damaged))

    @property
    def _digest(self) -> Digest | None:
        return recorded_digest(self.ledger.metadata)

    def _lists_some(self, damaged: Collection[EntryId]) -> bool:
        listed = self.listed
        return listed is not None and listed.status in _LISTS and any(each in listed.entries for each in damaged)


class _PacedReads(Transport):
    """Forwards requests. Reads wait for the limit, by the mean size of the entries so far, and count as progress."""

    def __init__(self, inner: Transport, throttle: Throttle, advance: Advance) -> None:
        self._inner = inner
        self._throttle = throttle
        self._advance = advance
        self._entries = 0
        self._bytes = 0

    @override
    async def add(self, bookie: BookieId, batch: AddBatch, timeout_s: float) -> AddReply:
        return await self._inner.add(bookie, batch, timeout_s)

    @override
    async def ask(self, bookie: BookieId, request: Request[ReplyT], timeout_s: float) -> ReplyT:
        expected_bytes = 0
        if isinstance(request, Read):
            expected_bytes = len(request.entry_ids) * self._bytes // max(1, self._entries)
            await self._throttle.take(expected_bytes)
        reply = await self._inner.ask(bookie, request, timeout_s)
        if isinstance(reply, ReadReply):
            read_bytes = sum(len(result.packet) for result in reply.results)
            self._throttle.charge(read_bytes - expected_bytes)
            self._entries += len(reply.results)
            self._bytes += read_bytes
            self._advance(len(reply.results))
        return reply

    @override
    async def close(self) -> None:
        """Do nothing: the owner closes the connections."""
