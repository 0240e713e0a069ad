"""Copy the entries of positions to their new bookies: exactly those entries, verified, byte for byte (S10).

The invariant: if an outcome is complete, its target has acknowledged every entry of its position, except those that the
target had listed before, and those that were left out. An entry is left out only if an operator accepted its loss, and
every source denied it or had a damaged copy (``UnreadableEntry.proves_loss``, R148). Each entry was read with a correct
digest and sent as stored, with the recovery flag (S3) and with the target's incarnation, if any, so that a bookie with
other disks refuses it (R30). The target acknowledges an entry after it has synced it (R29). An acknowledged copy does
not count yet: the metadata names the target only after the target has listed the copy (S11, ``repair.install``).

One copy may have several positions of the same fragment, each with its own target. An entry of several positions is
read and verified once, and sent to all their targets. Targets progress and end independently (``receiver``). If a
target refuses entries, or its entries cannot be read, nothing more is sent to it, and the copies to the other targets
continue.

Chunks may arrive in any order, because an add replaces an entry with the same id. A copy therefore runs in a few
concurrent lanes. Each lane takes the next chunk, reads it, and sends it. Thus reading and storing overlap, and several
sources are read at the same time. One write of the metadata installs a whole position. A lane checks before it reads
and before it sends whether the copy may continue, because it may have waited long: for a slot, for memory, for
unresponsive holders, or for the rate (S7, R94). This is also checked while lanes wait, because with a low rate they may
wait for hours: soon after a copy must end, its lanes end without their slots and memory. Lanes run ahead of a slow
chunk by at most ``AHEAD_BYTES_MAX`` (``receiver``), because after an interruption everything after this chunk is copied
again (R44).

``TransferSlots`` limits the chunks in flight to one bookie. ``ByteBudget`` limits the memory (R43): a lane reserves the
size of the largest possible answer before it sends a read, and holds the true size from the answer until the last
acknowledgement. During a pause before a retry, it holds neither a slot nor memory. ``CopyPace`` limits the bytes and
requests per second; every attempt at every target counts.

A copy stops early if it cannot succeed (no bookie serves an entry, or the target refuses), so that a position that
cannot be repaired is not copied repeatedly (R38). After a crash or an early stop, the target has entries that the
metadata does not mention. They are harmless: the next attempt usually chooses the same target and replaces them, and
the collection deletes the rest. The outcome is returned as a value: no behaviour of a bookie raises an exception here.

R rules are defined in docs/failure-model.md, S rules in docs/invariants.md.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Final

from bookie.client.access import stored_digest
from bookie.metadata.ledgers.ledgers import Versioned
from bookie.model.availability import EntryRuns
from bookie.model.errors import BkhealError, InvariantError
from bookie.model.ids import BookieId, EntryId
from bookie.model.metadata import LedgerMetadata
from bookie.model.packet import HEADER_SIZE
from bookie.model.topology import DEFAULT_RACK, Location
from bookie.runtime.clock import Clock
from bookie.runtime.fault_points import fault_point
from bookie.runtime.tasks import cancel_all
from bookie.wire.port import BATCH_BYTES_MAX, BATCH_ENTRIES_MAX, READ_ENTRIES_MAX, Transport
from replicator.copying.pace import CopyPace, PacedReads
from replicator.copying.pull import Pull, Pulls
from replicator.copying.receiver import (
    NOTHING_HELD,
    Needs,
    PositionCopy,
    Receiver,
    active_needs,
    merged_needs,
    receivers_of,
)
from replicator.copying.source_choice import HolderStanding, HolderView, distance, source_order
from replicator.copying.sources import EntrySource, FetchedEntries, Orders, Speculation
from replicator.copying.target import Target
from replicator.copying.throttle import ByteBudget
from replicator.copying.transfer_slots import SLOTS_MAX, HeldSlots, TransferSlots
from replicator.knowledge.evidence import BookieAnswer, CorruptCopy, UnreadableEntry

LANES_MAX: Final = 4
"""The most chunks of one copy in flight: enough to read, store and sync at the same time."""
CORRUPT_MAX: Final = 10_000
"""The most damaged copies that the outcome of a copy lists."""
CHECK_S: Final = 5.0
"""The time between two checks of whether a copy may continue while its lanes wait: for a slot, for memory, for the rate
or for a source."""
END_S: Final = 20.0
"""The longest time for which a lane continues after its copy must end: longer than one request, so that requests in
flight are answered. A lane that waits for the rate might continue for hours, with the lock of the ledger."""
_ENTRY_BYTES_GUESS: Final = 1024
_SOURCE_PAUSES_S: Final = (0.5, 2.0)
"""The pauses before entries of unresponsive holders are requested again."""

MayContinue = Callable[[], Awaitable[bool]]
"""Called before each read and each send. False stops the copy: repair is disabled, the session ended, or the process
stops."""
NoteLacking = Callable[[Set[BookieId]], Awaitable[None]]
"""Called with holders that denied entries that another holder served, could not read them (R140), or have damaged
copies of them (R41). The entries are sent only after it has returned: once a target lists them, they are not read
again, so the observation would be lost."""


NoteFound = Callable[[Mapping[EntryId, BookieId]], Awaitable[None]]
"""Called with entries that a record names as lost, each with the source that served it. They are sent only after it has
returned, because a record must not name entries that a bookie has (R148)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyOutcome:
    """The result of copying one position."""

    entries: int = 0
    """The number of entries that this copy made durable on the target."""
    bytes: int = 0
    unreadable: tuple[UnreadableEntry, ...] = ()
    unreadable_count: int = 0
    corrupt: tuple[CorruptCopy, ...] = ()
    """The damaged copies that were read for any of the positions copied together, whether or not another holder had a
    good copy. Empty if the digest type is only assumed."""
    target_failure: BookieAnswer | None = None
    is_interrupted: bool = False
    left_out: EntryRuns = NOTHING_HELD
    """The entries that were left out, because their loss was accepted and no source has them."""

    @property
    def is_complete(self) -> bool:
        """Whether every entry was stored on the target, except those that were left out."""
        return not self.unreadable_count and self.target_failure is None and not self.is_interrupted

    @property
    def is_permanent_failure(self) -> bool:
        """Whether some entry was refused permanently by every live holder."""
        return any(entry.is_final for entry in self.unreadable)


async def note_no_lacking(holders: Set[BookieId]) -> None:
    """Do nothing: a ``NoteLacking`` for callers that do not record these holders."""
    return


async def note_no_found(served_by: Mapping[EntryId, BookieId]) -> None:
    """Do nothing: a ``NoteFound`` for copies without entries that a record names as lost."""
    return


def _one_rack(bookie: BookieId) -> Location:
    return DEFAULT_RACK


class Copier:
    """Copies positions. One instance per process, because all copies share its limits."""

    def __init__(
        self,
        transport: Transport,
        clock: Clock,
        pace: CopyPace,
        budget: ByteBudget,
        is_avoided: Callable[[BookieId], bool] = lambda _: False,
        slots: TransferSlots | None = None,
        locate: Callable[[BookieId], Location] = _one_rack,
        pulls: Pulls | None = None,
    ) -> None:
        """Prepare copying.

        Args:
            transport: sends the requests.
            clock: the clock for pauses.
            pace: the limits on bytes and requests per second.
            budget: the limit on memory.
            is_avoided: returns whether a bookie is unresponsive; its copies are read last (R42).
            slots: the limit on chunks in flight to one bookie.
            locate: returns the place of a bookie in the topology.
            pulls: which bookies can read from which; None: targets read nothing by themselves.
        """
        self.pulls = pulls
        self.is_avoided = is_avoided
        self.transport = transport
        self.clock = clock
        self.pace = pace
        self.budget = budget
        self.slots = slots or TransferSlots(SLOTS_MAX)
        self.locate = locate
        self.copied_entries = 0
        """The number of entries that targets acknowledged, over all copies."""
        self.copied_bytes = 0
        self.pulled_bytes = 0
        """The part of ``copied_bytes`` that the targets read by themselves."""

    async def copy(
        self,
        ledger: Versioned,
        copies: Sequence[PositionCopy],
        may_continue: MayContinue,
        rank: int = 0,
        note_lacking: NoteLacking = note_no_lacking,
        note_found: NoteFound = note_no_found,
    ) -> list[CopyOutcome]:
        """Copy positions of one fragment, each to its own target; read each missing entry once.

        Copies with a smaller ``rank`` are served first if several wait for the rate, a slot or memory.

        An outcome reports acknowledgements only: the caller must still ask the targets for their lists of entries.

        Returns:
            The outcome of each of ``copies``, in their order.

        Raises:
            BkhealError: as raised by ``may_continue``, ``note_lacking`` or ``note_found``.
        """
        outcomes = await _CopyRun(self, ledger, copies, may_continue, rank, note_lacking, note_found).run()
        for copy, outcome in zip(copies, outcomes, strict=True):
            step = copy.step
            expected = step.entry_count - step.stripe.held_count(step.position, copy.held, step.first, step.last)
            expected -= len(outcome.left_out)
            if outcome.is_complete and outcome.entries != expected:
                raise InvariantError(f"copied {outcome.entries} entries of ledger {ledger.ledger_id}, not {expected}")
        return outcomes

    def count(self, entries: int, size_bytes: int, pulled_bytes: int = 0) -> None:
        """Add the entries that a target acknowledged to the totals."""
        self.copied_entries += entries
        self.copied_bytes += size_bytes
        self.pulled_bytes += pulled_bytes

    async def first_bad_answer(
        self, ledger: Versioned, bookie: BookieId, entry_ids: Sequence[EntryId], rank: int = 0
    ) -> BookieAnswer | None:
        """Read entries back from one bookie. Return None if all its copies are good, else its answer for a bad one."""
        paced = PacedReads(self.transport, self.pace, self.clock, rank)
        source = EntrySource(paced, ledger.ledger_id, stored_digest(ledger))  # only this bookie may answer
        waiting = list(entry_ids)
        while waiting:
            fetched = await source.fetch(dict.fromkeys(waiting[:READ_ENTRIES_MAX], (bookie,)))
            if fetched.unreadable:
                return fetched.unreadable[0].answers[0]
            waiting = [*fetched.rest, *waiting[READ_ENTRIES_MAX:]]
        return None


class _CopyRun:
    """The state of one copy, shared by its lanes."""

    def __init__(
        self,
        copier: Copier,
        ledger: Versioned,
        copies: Sequence[PositionCopy],
        may_continue: MayContinue,
        rank: int,
        note_lacking: NoteLacking,
        note_found: NoteFound,
    ) -> None:
        self._rank = rank
        self._note_lacking = note_lacking
        self._note_found = note_found
        self._recorded_lost = copies[0].recorded_lost
        digest = stored_digest(ledger)
        self._copier = copier
        self._may_continue = may_continue
        self._digest_type = ledger.metadata.digest_type
        self._is_digest_known = self._digest_type is not None
        self._reads = PacedReads(copier.transport, copier.pace, copier.clock, rank)
        speculation = Speculation(copier.clock, copier.budget)
        length = ledger.metadata.length or None
        self._source = EntrySource(self._reads, ledger.ledger_id, digest, length, speculation)
        self._reads.entry_bytes = HEADER_SIZE + digest.size + _average_payload(ledger.metadata)
        self._is_size_known = length is not None
        """Whether ``entry_bytes`` is more than a guess. Until then, nothing is pulled, because the limits are applied
        to a pull before its size is known."""
        self._chunk_number = int(ledger.ledger_id)
        """The number of the last chunk. It starts at the ledger's id, so that copies of different ledgers start with
        different holders."""
        self._suspects: set[BookieId] = set()
        self._receivers = [self._receiver(copy, ledger) for copy in copies]
        self._pull = self._pull_of(ledger)
        self._needs = merged_needs(self._receivers)
        self._ensemble_size = len(copies[0].step.sources)
        self._sources = {source for copy in copies for source in copy.step.sources if source is not None}
        self._corrupt: list[CorruptCopy] = []
        self._is_interrupted = False
        self._error: BkhealError | None = None
        self._chunks_under_way = 0
        self._chunk_ended = asyncio.Event()

    def _receiver(self, copy: PositionCopy, ledger: Versioned) -> Receiver:
        copier, bookie = self._copier, copy.step.target
        may_continue = partial(self._may_copy_to, bookie)
        target = Target(
            copier.transport, copier.clock, copier.pace, bookie, ledger, copy.incarnation, self._rank, may_continue
        )
        return Receiver(copy, target)

    def _pull_of(self, ledger: Versioned) -> Pull | None:
        """Return a pull if there is one target. With several targets, each would read the same entries."""
        if self._copier.pulls is None or len(self._receivers) > 1:
            return None
        [receiver] = self._receivers
        may_continue = partial(self._may_copy_to, receiver.bookie)
        return Pull(self._copier.pulls, ledger, receiver.bookie, receiver.target, may_continue)

    async def run(self) -> list[CopyOutcome]:
        most = max(each.step.entry_count for each in self._receivers)
        count = min(LANES_MAX, 1 + most // self._chunk_entries())
        # Not guarded: the lanes end with this call, and their errors are raised to the caller.
        lanes = [asyncio.create_task(self._run_lane()) for _ in range(count)]
        try:
            await self._wait_for_lanes(lanes)
        finally:
            await cancel_all(lanes)
        if self._error is not None:
            raise self._error
        return [self._outcome(each) for each in self._receivers]

    async def _wait_for_lanes(self, lanes: Sequence[asyncio.Task[None]]) -> None:
        """Wait until the lanes have ended. Once the copy must end, a lane may continue for ``END_S`` at most."""
        is_over = False
        while left := [lane for lane in lanes if not lane.done()]:
            timeout_s = END_S if is_over else CHECK_S
            ended, _ = await asyncio.wait(left, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            for lane in ended:
                lane.result()  # raises an error of the lane
            if not ended and is_over:
                return
            if not ended:
                is_over = not await self._should_continue()

    def _outcome(self, receiver: Receiver) -> CopyOutcome:
        return CopyOutcome(
            entries=receiver.target.entries,
            bytes=receiver.target.bytes,
            unreadable=tuple(receiver.unreadable),
            unreadable_count=receiver.unreadable_count,
            corrupt=tuple(self._corrupt),
            target_failure=receiver.failure,
            is_interrupted=self._is_interrupted,
            left_out=receiver.left_out,
        )

    def _is_over(self) -> bool:
        return bool(self._is_interrupted or self._error or not any(each.is_active for each in self._receivers))

    async def _run_lane(self) -> None:
        while not self._is_over():
            chunk: Needs = dict(itertools.islice(self._needs, self._chunk_entries()))
            if not chunk:
                return
            self._chunk_number += 1
            for each in receivers_of(chunk):
                each.take(self._chunk_number, chunk)
            self._chunks_under_way += 1
            try:
                await self._copy_chunk(chunk, self._chunk_number)
            finally:
                self._chunks_under_way -= 1
                self._chunk_ended.set()
            await self._wait_for_others()

    async def _wait_for_others(self) -> None:
        """Wait for the oldest unfinished chunk if much was copied after it: progress is recorded up to it (R44).

        The wait ends: the lane of the oldest chunk does not wait here, and its reads, sends and pauses are bounded.
        """
        while self._chunks_under_way and not self._is_over() and any(each.is_far_ahead for each in self._receivers):
            self._chunk_ended.clear()
            await self._chunk_ended.wait()

    async def _should_continue(self) -> bool:
        try:
            if not await self._may_continue():
                self._is_interrupted = True
        except BkhealError as error:  # ``run`` raises it; a task group would wrap it
            self._error = self._error or error
        return not self._is_over()

    async def _may_copy_to(self, bookie: BookieId) -> bool:
        return await self._should_continue() and any(
            each.is_active for each in self._receivers if each.bookie == bookie
        )

    def _chunk_entries(self) -> int:
        """Return the number of entries per chunk: about one full batch, so a chunk is one request to the target."""
        if fault_point("replicator.tiny_batch"):
            return 1
        return max(1, min(BATCH_ENTRIES_MAX, BATCH_BYTES_MAX // self._reads.entry_bytes))

    async def _copy_chunk(self, chunk: Needs, chunk_number: int) -> None:
        """Copy a chunk in as many passes as its size needs, unless the copy ends before.

        Entries are requested again a few times if their holders do not answer.
        """
        left_out: set[EntryId] = set()
        try:
            await self._copy_in_passes(chunk, chunk_number, left_out)
        finally:
            for receiver in receivers_of(chunk) if left_out else ():
                receiver.leave_out(sorted(entry_id for entry_id in left_out if receiver in chunk[entry_id]))

    async def _copy_in_passes(self, chunk: Needs, chunk_number: int, left_out: set[EntryId]) -> None:
        """Copy a chunk, and add the entries without a copy whose loss was accepted to ``left_out``."""
        waiting, failures = chunk, 0
        while waiting := active_needs(waiting):
            if not (waiting := await self._pulled(waiting, chunk_number)):
                return
            asked = self._within_budget(waiting)
            fetched = await self._pass(asked, waiting, chunk_number, left_out)
            if fetched is None:
                return
            done = fetched.packets.keys() | left_out
            waiting = {entry_id: who for entry_id, who in waiting.items() if entry_id not in done}
            unanswered = [entry for entry in fetched.unreadable if entry.entry_id not in left_out]
            failures = failures + 1 if unanswered else 0
            if failures > len(_SOURCE_PAUSES_S):
                self._end_unreadable(unanswered, unanswered, asked)
                failures = 0
            elif unanswered:
                await self._copier.clock.sleep(_SOURCE_PAUSES_S[failures - 1])

    async def _pulled(self, chunk: Needs, chunk_number: int) -> Needs:
        """Let a single target read entries by itself, and return the remaining entries."""
        if self._pull is None or not self._is_size_known:
            return chunk
        [receiver] = self._receivers
        waiting, rest = list(chunk), list[EntryId]()
        if self._recorded_lost:  # the worker must see whether a source has these
            waiting = [entry_id for entry_id in chunk if entry_id not in self._recorded_lost]
            rest = [entry_id for entry_id in chunk if entry_id in self._recorded_lost]
        while waiting and not self._is_over():
            async with self._copier.slots.hold([receiver.bookie], self._rank):
                orders = self._orders(
                    {entry_id: chunk[entry_id] for entry_id in waiting}, [receiver.bookie], chunk_number
                )
                pulled = await self._pull.pull_entries(waiting, orders, self._avoided(), self._reads.entry_bytes)
            self._suspects |= pulled.unresponsive
            self._copier.count(pulled.entries, pulled.bytes, pulled.bytes)
            self._update_entry_size()
            rest, waiting = sorted((*rest, *pulled.rest)), pulled.later
            await self._settle(receiver, chunk_number, min((*rest, *waiting), default=None))
        return {entry_id: chunk[entry_id] for entry_id in sorted((*rest, *waiting))}

    def _avoided(self) -> Set[BookieId]:
        """Return the unresponsive holders, which reads use last."""
        return self._suspects | {bookie for bookie in self._sources if self._copier.is_avoided(bookie)}

    def _update_entry_size(self) -> None:
        if entries := sum(each.target.entries for each in self._receivers):
            self._reads.entry_bytes = max(1, sum(each.target.bytes for each in self._receivers) // entries)
            self._is_size_known = True

    def _within_budget(self, waiting: Needs) -> Needs:
        """Return ``waiting``, or only its first entry if the largest possible answer exceeds the budget."""
        is_small_enough = self._source.answer_bytes_max(len(waiting)) <= self._copier.budget.limit_bytes
        return waiting if is_small_enough else dict(itertools.islice(waiting.items(), 1))

    async def _pass(
        self, asked: Needs, waiting: Needs, chunk_number: int, left_out: set[EntryId]
    ) -> FetchedEntries | None:
        """Read as much of ``asked`` as fits into one pass, and send it; return None if the copy is over."""
        budget = self._copier.budget
        receivers = receivers_of(asked)
        targets = [each.bookie for each in receivers]
        async with (
            self._copier.slots.hold(targets, self._rank) as slots,
            budget.hold(self._source.answer_bytes_max(len(asked)), self._rank) as share,
        ):
            if not await self._should_continue():
                return None
            fetched = await self._source.fetch(self._orders(asked, targets, chunk_number))
            budget.reduce(share, fetched.size_bytes)
            self._suspects.update(fetched.unresponsive)
            self._note_corrupt(fetched.corrupt)
            left_out.update(entry.entry_id for entry in fetched.unreadable if self._may_leave_out(entry, asked))
            unreadable = [entry for entry in fetched.unreadable if entry.entry_id not in left_out]
            self._end_unreadable([entry for entry in unreadable if entry.is_final], unreadable, asked)
            damaged = {copy.bookie for copy in fetched.corrupt if copy.entry_id in fetched.packets}
            if (fetched.lacking or damaged) and not await self._try(self._note_lacking(fetched.lacking | damaged)):
                return None
            if self._recorded_lost and not await self._note_recorded(fetched):
                return None
            if self._is_over() or not await self._should_continue():
                return None
            stored = await self._send(fetched.packets, asked, receivers, slots)
        for receiver in stored:
            await self._note_stored(receiver, fetched.packets.keys() | left_out, waiting, chunk_number)
        return None if self._is_over() else fetched

    def _may_leave_out(self, entry: UnreadableEntry, asked: Needs) -> bool:
        """Whether the loss of an entry was accepted for all its receivers, and no source has it (R148)."""
        is_accepted = all(entry.entry_id in receiver.may_leave_out for receiver in asked[entry.entry_id])
        return is_accepted and entry.proves_loss(self._digest_type)

    def _end_unreadable(
        self, causes: Sequence[UnreadableEntry], unreadable: Sequence[UnreadableEntry], asked: Needs
    ) -> None:
        """End the receivers of the entries in ``causes``; each keeps its entries of ``unreadable`` as evidence."""
        ended = {each for entry in causes for each in asked[entry.entry_id]}
        for receiver in ended:
            receiver.end_unreadable([entry for entry in unreadable if receiver in asked[entry.entry_id]])

    async def _note_recorded(self, fetched: FetchedEntries) -> bool:
        """Note the entries that a source served although a record names them as lost; return False if this failed."""
        found = {
            entry_id: fetched.served_by[entry_id] for entry_id in fetched.packets if entry_id in self._recorded_lost
        }
        return not found or await self._try(self._note_found(found))

    async def _try(self, note: Awaitable[None]) -> bool:
        try:
            await note
        except BkhealError as error:
            self._error = self._error or error
            return False
        return True

    async def _note_stored(self, receiver: Receiver, done: Set[EntryId], waiting: Needs, chunk_number: int) -> None:
        left = (entry_id for entry_id, who in waiting.items() if receiver in who and entry_id not in done)
        await self._settle(receiver, chunk_number, next(left, None))

    async def _settle(self, receiver: Receiver, chunk_number: int, first_waiting: EntryId | None) -> None:
        try:
            await receiver.settle(chunk_number, first_waiting)
        except BkhealError as error:
            self._error = self._error or error

    def _note_corrupt(self, corrupt: Sequence[CorruptCopy]) -> None:
        if not self._is_digest_known:  # a mismatch with an assumed digest is no evidence of damage
            return
        for copy in corrupt:
            if len(self._corrupt) < CORRUPT_MAX and copy not in self._corrupt:  # several passes may find it
                self._corrupt.append(copy)

    def _orders(self, asked: Needs, targets: Sequence[BookieId], chunk_number: int) -> Orders:
        """Return the holders of each entry in the order to ask them (``source_choice``)."""
        known = self._known(targets)
        orders: dict[_HolderGroupKey, Sequence[BookieId]] = {}
        found: dict[EntryId, Sequence[BookieId]] = {}
        for entry_id, who in asked.items():
            kind = entry_id % self._ensemble_size, who
            if kind not in orders:
                orders[kind] = source_order(_holders(*kind), _with_targets_last(known, who), chunk_number)
            found[entry_id] = orders[kind]
        return found

    def _known(self, targets: Sequence[BookieId]) -> Mapping[BookieId, HolderView]:
        copier = self._copier
        return {
            holder: HolderView(
                HolderStanding.UNRESPONSIVE
                if holder in self._suspects or copier.is_avoided(holder)
                else HolderStanding.ANSWERS,
                copier.pace.loads.expected_s(holder),
                distance(holder, targets, copier.locate),
            )
            for holder in self._sources
        }

    async def _send(
        self, packets: Mapping[EntryId, bytes], asked: Needs, receivers: Sequence[Receiver], slots: HeldSlots
    ) -> list[Receiver]:
        """Send the entries to their receivers concurrently; return the receivers that acknowledged all of them."""
        sent = [each for each in receivers if each.is_active]
        entry_ids = sorted(packets)
        works = [
            self._store(each, [packets[i] for i in entry_ids if len(receivers) == 1 or each in asked[i]], slots)
            for each in sent
        ]
        if len(works) == 1:
            return sent if await works[0] else []
        async with asyncio.TaskGroup() as group:
            storing = [group.create_task(work) for work in works]
        return [each for each, stored in zip(sent, storing, strict=True) if stored.result()]

    async def _store(self, receiver: Receiver, packets: Sequence[bytes], slots: HeldSlots) -> bool:
        """Send entries to a target, and return whether it stored them. A failure after the copy ended is ignored."""
        failure = await receiver.target.store(packets)
        await slots.free(receiver.bookie)
        if failure is None:
            self._copier.count(len(packets), sum(map(len, packets)))
        elif not self._is_over() and receiver.is_active:
            receiver.failure = failure
        self._update_entry_size()
        return failure is None


_HolderGroupKey = tuple[int, tuple[Receiver, ...]]
"""``entry_id mod E`` and the receivers of the entry: entries of one kind have the same holders."""


def _holders(start: int, who: Sequence[Receiver]) -> tuple[BookieId, ...]:
    return tuple(dict.fromkeys(holder for each in who for holder in each.step.holders(start)))


def _with_targets_last(known: Mapping[BookieId, HolderView], who: Sequence[Receiver]) -> Mapping[BookieId, HolderView]:
    """Return ``known``, changed so that targets that need the entry come after all responsive holders."""
    needing = {each.bookie for each in who} & known.keys()
    if not needing:
        return known
    return {**known, **{bookie: _deprioritized(known[bookie]) for bookie in needing}}


def _deprioritized(view: HolderView) -> HolderView:
    return HolderView(max(view.standing, HolderStanding.NEEDS_IT), view.expected_s, view.distance)


def _average_payload(metadata: LedgerMetadata) -> int:
    """Return a first estimate of the bytes per entry, from the length of a closed ledger: its payload bytes, or 0.

    Source: docs/formats.md#recovery.
    """
    if metadata.length and metadata.last_entry_id is not None:
        return metadata.length // (metadata.last_entry_id + 1)
    return _ENTRY_BYTES_GUESS
