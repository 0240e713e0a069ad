"""What bookies say they hold, held against what the metadata says they should.

Used twice: a target must list every entry before the metadata may name it (S11, reliability R24: every id, not the
first and last), and a bookie that a task names but that is registered is asked whether it is whole (R31): it may have
come back with empty disks. A bookie that does not answer is unknown, neither whole nor incomplete (S6). Lastly the
last fragment of an unclosed ledger is probed for an entry.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

from bookie.metadata.ledgers import Versioned
from bookie.metadata.registration import Bookies
from bookie.model.availability import EntryRuns
from bookie.model.digest import digest_for
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import LedgerMetadata, LedgerState
from bookie.model.packet import DamagedEntry, unpack
from bookie.model.schedule import stored_count
from bookie.runtime.clock import Clock
from bookie.wire.port import ListReply, Status, Transport
from replicator.evidence import Answer
from replicator.plan import PositionKey, closed_fragment_last
from replicator.steps import CopyPosition

LIST_TIMEOUT_S: Final = 15.0
_ATTEMPTS_MAX: Final = 4
_BACKOFF_S: Final = 0.25
_RETRIED: Final = frozenset({Status.TOO_MANY_REQUESTS, Status.TIMEOUT, Status.UNREACHABLE})
_LISTS: Final = frozenset({Status.OK, Status.NO_LEDGER, Status.NO_ENTRY, Status.LIMBO})
"""Answers whose list counts. What a bookie in limbo lists it has: one that lists all it should is whole. What it does
not list is missing, for whatever reason, and is copied to it again; it is no source for that."""


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Registered bookies that lack entries, by position, with the entries they do list; and those that are unknown."""

    positions: frozenset[PositionKey] = frozenset()
    doubtful: frozenset[PositionKey] = frozenset()
    """Positions of growing fragments of which only a recovery can tell what they lack: the bookie lost what it held, or
    a recovery found it short and died."""
    held: tuple[tuple[BookieId, EntryRuns], ...] = ()
    silent: tuple[Answer, ...] = ()

    def held_by(self, bookie: BookieId) -> EntryRuns:
        """What an incomplete bookie listed."""
        return next((runs for name, runs in self.held if name == bookie), EntryRuns(()))


class Holdings:
    """Asks bookies what they hold."""

    def __init__(self, transport: Transport, clock: Clock) -> None:
        self._transport = transport
        self._clock = clock

    async def pin(self, ledger_id: LedgerId, target: BookieId) -> Answer | None:
        """Ask a target for its list before anything is copied to it, which keeps its collector from the ledger.

        None if it answered, else its answer. What it lists is no reason to copy less: nobody has verified it.
        """
        reply = await self._list(target, ledger_id)
        return None if reply.status in _LISTS else Answer(target, reply.status, reply.detail)

    async def missing_on_target(self, ledger_id: LedgerId, step: CopyPosition) -> Answer | None:
        """None if the target lists every entry of ``step``, else its answer."""
        reply = await self._list(step.target, ledger_id)
        size = len(step.sources)
        if reply.status in _LISTS:
            held = _held_count(reply.entries, step.position, step.first, step.last, size, step.write_quorum)
            if held == step.entry_count:
                return None
            return Answer(step.target, reply.status, f"lists {held} of {step.entry_count} entries")
        return Answer(step.target, reply.status, reply.detail)

    async def shortfall(self, ledger: Versioned, named: Collection[BookieId], bookies: Bookies) -> Shortfall:
        """Which of the registered members among ``named`` lack entries of closed fragments, or may of others.

        One that is being drained is not asked: it is replaced wherever it can be, whatever it holds.
        """
        positions: set[PositionKey] = set()
        doubtful: set[PositionKey] = set()
        held: list[tuple[BookieId, EntryRuns]] = []
        silent: list[Answer] = []
        is_in_recovery = ledger.metadata.state is LedgerState.IN_RECOVERY
        for bookie in sorted(set(named) & ledger.metadata.members() & bookies.registered):
            if is_in_recovery:
                doubtful.update(_growing_positions(ledger.metadata, bookie))
            if bookie in bookies.draining:
                continue
            reply = await self._list(bookie, ledger.ledger_id)
            if reply.status not in _LISTS:
                silent.append(Answer(bookie, reply.status, reply.detail))
                continue
            short = list(_short_positions(ledger.metadata, bookie, reply.entries))
            positions.update(short)
            if short:
                held.append((bookie, reply.entries))
            if reply.status is Status.LIMBO:
                doubtful.update(_growing_positions(ledger.metadata, bookie))
        return Shortfall(frozenset(positions), frozenset(doubtful), tuple(held), tuple(silent))

    async def is_tail_written(self, ledger: Versioned, bookies: Bookies) -> bool:
        """Whether some bookie serves a verified entry of the last fragment. False also where nobody can tell."""
        metadata = ledger.metadata
        if metadata.password is None or metadata.digest_type is None:
            return False
        digest = digest_for(metadata.digest_type, metadata.password)
        last = metadata.last_fragment
        for bookie in dict.fromkeys(member for member in last.members if member in bookies.registered):
            reply = await self._transport.read_last(bookie, ledger.ledger_id, LIST_TIMEOUT_S)
            for result in reply.results:
                if result.status is Status.OK and result.entry_id >= last.first_entry_id:
                    try:
                        unpack(digest, result.packet, ledger.ledger_id, result.entry_id)
                    except DamagedEntry:
                        continue  # the next member may have a good one
                    return True
        return False

    async def _list(self, bookie: BookieId, ledger_id: LedgerId) -> ListReply:
        for attempt in itertools.count(1):
            reply = await self._transport.list_entries(bookie, ledger_id, LIST_TIMEOUT_S)
            if reply.status not in _RETRIED or attempt == _ATTEMPTS_MAX:
                return reply
            await self._clock.sleep(_BACKOFF_S * 2**attempt)
        raise AssertionError("unreachable: counting has no end")


def _growing_positions(metadata: LedgerMetadata, bookie: BookieId) -> Iterator[PositionKey]:
    for index, fragment in enumerate(metadata.fragments):
        if closed_fragment_last(metadata, index, is_tail_written=False) is None:
            for position, member in enumerate(fragment.members):
                if member == bookie:
                    yield PositionKey(fragment.first_entry_id, position, bookie)


def _short_positions(metadata: LedgerMetadata, bookie: BookieId, listed: EntryRuns) -> Iterator[PositionKey]:
    """Also of the last fragment but one of an unclosed ledger: the plan asks for them once it knows that one's end."""
    size, quorum = metadata.ensemble_size, metadata.write_quorum
    for index, fragment in enumerate(metadata.fragments):
        last = closed_fragment_last(metadata, index, is_tail_written=True)
        if last is None:
            continue
        first = fragment.first_entry_id
        for position, member in enumerate(fragment.members):
            if member == bookie:
                held = _held_count(listed, position, first, last, size, quorum)
                if held < stored_count(position, first, last, size, quorum):
                    yield PositionKey(first, position, bookie)


def _held_count(listed: EntryRuns, position: int, first: EntryId, last: EntryId, size: int, quorum: int) -> int:
    """How many of the entries that ``position`` stores are listed: arithmetic on runs, not a walk over entries."""
    return sum(
        stored_count(position, max(run_first, first), min(run_last, last), size, quorum)
        for run_first, run_last in listed.runs
    )
