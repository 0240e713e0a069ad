"""Copy the entries of one position to its new bookie: exactly those entries, verified, byte for byte (S10).

The invariant: if an outcome is complete, the target has acknowledged every entry of the position, apart from those that
it listed before. Each was read with a correct digest and sent as stored, with the recovery flag (S3) and the target's
incarnation, if it has one, so other disks refuse it (R30). An acknowledgement follows the target's sync (R29). An
acknowledged copy does not count yet: the target must list it before the metadata names the target (S11,
``repair.install``).

Chunks may arrive in any order, because an add replaces an entry with the same id. A copy therefore runs in a few lanes.
Each lane takes the next chunk, checks that the copy may continue, reads the chunk, and sends it, so that reading and
storing overlap. ``ByteBudget`` bounds the memory: a lane holds the largest possible answer before it asks, and the true
size from the answer until the target has acknowledged it (R43). A pause before entries are asked for again holds none.
``Pace`` bounds the bytes and requests per second.

A copy stops early if it cannot succeed (no bookie serves an entry, or the target refuses), so a hopeless position is
not copied again and again (R38). After a crash or an early stop, the target has entries that no metadata names. They
are harmless: the next attempt usually chooses the same target and replaces them, and a collector deletes the rest. The
outcome is a value: nothing that a bookie does raises an exception here.

R rules are defined in docs/failure-model.md, S rules in docs/invariants.md.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Final

from bookie.client.access import stored_digest
from bookie.metadata.ledgers.ledgers import Versioned
from bookie.model.availability import EntryRuns
from bookie.model.errors import BkhealError, InvariantError
from bookie.model.ids import BookieId, EntryId
from bookie.model.metadata import LedgerMetadata
from bookie.model.packet import HEADER_SIZE
from bookie.runtime.clock import Clock
from bookie.runtime.fault_points import fault_point
from bookie.wire.port import BATCH_BYTES_MAX, BATCH_ENTRIES_MAX, READ_ENTRIES_MAX, Transport
from replicator.copying.pace import Pace, PacedReads
from replicator.copying.pull import Pull, Pulls
from replicator.copying.sources import EntrySource, FetchedEntries, Orders, Speculation
from replicator.copying.target import Target
from replicator.copying.throttle import ByteBudget
from replicator.knowledge.evidence import Answer, CorruptCopy, UnreadableEntry
from replicator.plan.steps import CopyPosition

LANES_MAX: Final = 4
"""Chunks of one position on their way: enough to read, store and sync at the same time."""
REPORTED_MAX: Final = 100
"""Unreadable entries kept with their answers; beyond it they are only counted."""
CORRUPT_MAX: Final = 10_000
"""Damaged copies kept of one position, so that they can be replaced."""
_ENTRY_BYTES_GUESS: Final = 1024
_SOURCE_PAUSES_S: Final = (0.5, 2.0)
"""Pauses before entries are asked for again whose holders did not answer."""

NOTHING_HELD: Final = EntryRuns(())

MayContinue = Callable[[], Awaitable[bool]]
"""Asked before each chunk: False stops the copy (disabled, session over, stopping)."""
NoteProgress = Callable[[EntryId, int], Awaitable[None]]
"""Called with (end, bytes): the target has every entry of the position before ``end``, and so many bytes more."""


async def _note_nothing(end: EntryId, size_bytes: int) -> None:
    return


@dataclass(frozen=True, slots=True)
class CopyOutcome:
    """How the copying of one position went."""

    entries: int = 0
    """Entries that are durable on the target now."""
    bytes: int = 0
    unreadable: tuple[UnreadableEntry, ...] = ()
    unreadable_count: int = 0
    corrupt: tuple[CorruptCopy, ...] = ()
    """Damaged copies met on the way, whether or not another holder helped out. None if the digest is assumed."""
    target_failure: Answer | None = None
    is_interrupted: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether every entry was stored on the target."""
        return not self.unreadable_count and self.target_failure is None and not self.is_interrupted

    @property
    def is_hopeless(self) -> bool:
        """True if every live holder refused some entry permanently."""
        return any(entry.is_final for entry in self.unreadable)


class Copier:
    """Copies positions. One for the whole process, because the bounds are shared."""

    def __init__(
        self,
        transport: Transport,
        clock: Clock,
        pace: Pace,
        budget: ByteBudget,
        is_avoided: Callable[[BookieId], bool] = lambda _: False,
        pulls: Pulls | None = None,
    ) -> None:
        """Prepare copying. Sources that ``is_avoided`` are asked last (R42). Without ``pulls``, nothing is pulled."""
        self.pulls = pulls
        self.is_avoided = is_avoided
        self.transport = transport
        self.clock = clock
        self.pace = pace
        self.budget = budget
        self.copied_entries = 0
        """Entries that targets have acknowledged, over all copies."""
        self.copied_bytes = 0
        self.pulled_bytes = 0
        """Of them, those that did not pass this process."""

    async def copy(
        self,
        ledger: Versioned,
        step: CopyPosition,
        may_continue: MayContinue,
        held: EntryRuns = NOTHING_HELD,
        incarnation: str = "",
        rank: int = 0,
        note_progress: NoteProgress = _note_nothing,
    ) -> CopyOutcome:
        """Copy the entries of ``step`` that ``held`` (what the target has) does not name, to that ``incarnation``.

        Copies of a smaller ``rank`` pass where copies wait for the rate or for memory.

        The target must still be asked for its list afterwards: an outcome is what it acknowledged.

        Raises:
            BkhealError: what ``may_continue`` raised.
        """
        run = _CopyRun(self, ledger, step, may_continue, held, incarnation, rank, note_progress)
        outcome = await run.run()
        expected = step.entry_count - step.stripe.held_count(step.position, held, step.first, step.last)
        if outcome.is_complete and outcome.entries != expected:
            raise InvariantError(f"copied {outcome.entries} entries of ledger {ledger.ledger_id}, not {expected}")
        return outcome

    def count(self, entries: int, size_bytes: int, pulled_bytes: int = 0) -> None:
        """Count entries that a target has acknowledged."""
        self.copied_entries += entries
        self.copied_bytes += size_bytes
        self.pulled_bytes += pulled_bytes

    async def not_served(
        self, ledger: Versioned, bookie: BookieId, entry_ids: Sequence[EntryId], rank: int = 0
    ) -> Answer | None:
        """Read entries back from a bookie; None if it serves good copies of all of them, else its answer for one."""
        paced = PacedReads(self.transport, self.pace, self.clock, rank)
        source = EntrySource(paced, ledger.ledger_id, stored_digest(ledger))  # no other bookie may answer for it
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
        step: CopyPosition,
        may_continue: MayContinue,
        held: EntryRuns,
        incarnation: str,
        rank: int,
        note_progress: NoteProgress,
    ) -> None:
        self._rank = rank
        self._note_progress = note_progress
        self._taken_end = EntryId(step.first)
        """Exclusive end of the chunks that lanes have taken."""
        self._noted_bytes = 0
        self._waiting: dict[int, EntryId] = {}
        """The first entry of each chunk under way that is not acknowledged yet, by the chunk's number."""
        digest = stored_digest(ledger)
        self._copier = copier
        self._ledger_id = ledger.ledger_id
        self._step = step
        self._may_continue = may_continue
        self._is_digest_known = ledger.metadata.digest_type is not None
        self._reads = PacedReads(copier.transport, copier.pace, copier.clock, rank)
        speculation = Speculation(copier.clock, copier.budget)
        length = ledger.metadata.length or None
        self._source = EntrySource(self._reads, ledger.ledger_id, digest, length, speculation)
        self._entry_ids = entries_without(step, held)
        self._reads.entry_bytes = HEADER_SIZE + digest.size + _average_payload(ledger.metadata)
        self._is_size_known = length is not None
        """Whether ``entry_bytes`` is more than a guess. The pace of a pull has nothing else before its answer."""
        self._turn = int(ledger.ledger_id)
        self._holders = [step.holders(start) for start in range(len(step.sources))]
        self._suspects: set[BookieId] = set()
        self._target = Target(
            copier.transport, copier.clock, copier.pace, step.target, ledger, incarnation, rank, self._goes_on
        )
        self._pull = (
            None if copier.pulls is None else Pull(copier.pulls, ledger, step.target, self._target, self._goes_on)
        )
        self._unreadable: list[UnreadableEntry] = []
        self._unreadable_count = 0
        self._corrupt: list[CorruptCopy] = []
        self._target_failure: Answer | None = None
        self._is_interrupted = False
        self._error: BkhealError | None = None

    async def run(self) -> CopyOutcome:
        lanes = min(LANES_MAX, 1 + self._step.entry_count // self._chunk_entries())
        async with asyncio.TaskGroup() as group:
            for _ in range(lanes):
                group.create_task(self._lane())
        if self._error is not None:
            raise self._error
        return CopyOutcome(
            self._target.entries,
            self._target.bytes,
            tuple(self._unreadable),
            self._unreadable_count,
            tuple(self._corrupt),
            self._target_failure,
            self._is_interrupted,
        )

    def _is_over(self) -> bool:
        return bool(self._is_interrupted or self._error or self._unreadable_count or self._target_failure)

    async def _lane(self) -> None:
        while not self._is_over():
            chunk = list(itertools.islice(self._entry_ids, self._chunk_entries()))
            if not chunk:
                return
            self._turn += 1
            self._taken_end = EntryId(chunk[-1] + 1)
            await self._copy_chunk(chunk, self._turn)

    async def _goes_on(self) -> bool:
        try:
            if not await self._may_continue():
                self._is_interrupted = True
        except BkhealError as error:  # a task group would wrap it; the first one is raised as it is
            self._error = self._error or error
        return not self._is_over()

    def _chunk_entries(self) -> int:
        """Entries that make about one full batch, so that a chunk is one request to the target."""
        if fault_point("replicator.tiny_batch"):
            return 1
        return max(1, min(BATCH_ENTRIES_MAX, BATCH_BYTES_MAX // self._reads.entry_bytes))

    async def _copy_chunk(self, chunk: Sequence[EntryId], turn: int) -> None:
        """Copy a chunk in as many passes as its size needs, or until the copy is over.

        Entries whose holders did not answer are asked for again a few times.
        """
        self._waiting[turn] = chunk[0]
        waiting, silences = list(chunk), 0
        while waiting and await self._goes_on():
            if not (waiting := await self._pulled(waiting, turn)):
                return
            asked = self._within_budget(waiting)
            fetched = await self._pass(asked, turn)
            if fetched is None:
                return
            silent = fetched.unreadable
            waiting = sorted((*fetched.rest, *(entry.entry_id for entry in silent), *waiting[len(asked) :]))
            self._reached(turn, waiting)
            await self._note_stored()
            silences = silences + 1 if silent else 0
            if silences > len(_SOURCE_PAUSES_S):
                self._give_up(silent)
                return
            if silent:
                await self._copier.clock.sleep(_SOURCE_PAUSES_S[silences - 1])

    async def _pulled(self, chunk: list[EntryId], turn: int) -> list[EntryId]:
        """Let the target read by itself what it can, and return what is left."""
        if self._pull is None or not self._is_size_known:
            return chunk
        waiting, rest = chunk, list[EntryId]()
        while waiting and not self._is_over():
            orders, avoided = self._orders(waiting, turn), self._avoided()
            pulled = await self._pull.bring(waiting, orders, avoided, self._reads.entry_bytes)
            self._suspects |= pulled.silent
            self._copier.count(pulled.entries, pulled.bytes, pulled.bytes)
            self._learn_size()
            rest, waiting = sorted((*rest, *pulled.rest)), pulled.later
            self._reached(turn, sorted((*rest, *waiting)))
            await self._note_stored()
        return sorted((*rest, *waiting))

    def _reached(self, turn: int, waiting: Sequence[EntryId]) -> None:
        if waiting:
            self._waiting[turn] = waiting[0]
        else:
            del self._waiting[turn]

    def _learn_size(self) -> None:
        if self._target.entries:
            self._reads.entry_bytes = max(1, self._target.bytes // self._target.entries)
            self._is_size_known = True

    async def _note_stored(self) -> None:
        size_bytes, self._noted_bytes = self._target.bytes - self._noted_bytes, self._target.bytes
        end = EntryId(min((*self._waiting.values(), self._taken_end)))
        try:
            await self._note_progress(end, size_bytes)
        except BkhealError as error:
            self._error = self._error or error

    def _within_budget(self, waiting: Sequence[EntryId]) -> Sequence[EntryId]:
        """All of ``waiting``, or a single entry if the budget is smaller than their largest possible answer."""
        is_small_enough = self._source.answer_bytes_max(len(waiting)) <= self._copier.budget.limit_bytes
        return waiting if is_small_enough else waiting[:1]

    async def _pass(self, waiting: Sequence[EntryId], turn: int) -> FetchedEntries | None:
        """Read and send what one pass can hold of ``waiting``; None if the copy is over."""
        budget = self._copier.budget
        async with budget.hold(self._source.answer_bytes_max(len(waiting)), self._rank) as share:
            if self._is_over():
                return None
            fetched = await self._source.fetch(self._orders(waiting, turn))
            budget.reduce(share, fetched.size_bytes)
            self._suspects.update(fetched.silent)
            self._note_corrupt(fetched.corrupt)
            if any(entry.is_final for entry in fetched.unreadable):
                self._give_up(fetched.unreadable)
            if self._is_over():
                return None
            is_stored = await self._send([fetched.packets.pop(entry_id) for entry_id in sorted(fetched.packets)])
        return fetched if is_stored else None

    def _give_up(self, unreadable: Sequence[UnreadableEntry]) -> None:
        self._unreadable.extend(unreadable[: REPORTED_MAX - len(self._unreadable)])
        self._unreadable_count += len(unreadable)

    def _note_corrupt(self, corrupt: Sequence[CorruptCopy]) -> None:
        if not self._is_digest_known:  # a copy that does not match a guess is not evidence of a damaged disk
            return
        for copy in corrupt:
            if len(self._corrupt) < CORRUPT_MAX and copy not in self._corrupt:  # several passes may meet it
                self._corrupt.append(copy)

    def _avoided(self) -> Set[BookieId]:
        """Holders that are asked last, because they did not answer."""
        return self._suspects | {b for b in set().union(*self._holders) if self._copier.is_avoided(b)}

    def _orders(self, entry_ids: Sequence[EntryId], turn: int) -> Orders:
        """Whom to ask: the first holder changes from chunk to chunk, bookies that did not answer come last."""
        size = len(self._holders)
        last = self._avoided()
        rotated = [sorted(_rotate(holders, turn), key=last.__contains__) for holders in self._holders]
        return {entry_id: rotated[entry_id % size] for entry_id in entry_ids}

    async def _send(self, packets: Sequence[bytes]) -> bool:
        """Send copies. A failure after the end of the copy is not the target's."""
        failure = await self._target.store(packets)
        if failure is None:
            self._copier.count(len(packets), sum(map(len, packets)))
        elif not self._is_over():
            self._target_failure = failure
        self._learn_size()
        return failure is None


def entries_without(step: CopyPosition, held: EntryRuns) -> Iterator[EntryId]:
    """The entries of ``step`` that are not held. Passes over runs, not over what they hold: 10^8 entries, maybe."""
    first = step.first
    for run_first, run_last in held.runs:
        if run_first > step.last:
            break
        yield from step.stripe.entries(step.position, first, run_first - 1)
        first = EntryId(max(first, run_last + 1))
    yield from step.stripe.entries(step.position, first, step.last)


def _average_payload(metadata: LedgerMetadata) -> int:
    """A first guess, corrected by what is read: a closed ledger's length is its payload bytes, or 0.

    Source: docs/formats.md#recovery.
    """
    if metadata.length and metadata.last_entry_id is not None:
        return metadata.length // (metadata.last_entry_id + 1)
    return _ENTRY_BYTES_GUESS


def _rotate(holders: tuple[BookieId, ...], turn: int) -> tuple[BookieId, ...]:
    cut = turn % len(holders) if holders else 0
    return holders[cut:] + holders[:cut]
