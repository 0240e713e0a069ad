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

A copy stops early if it cannot succeed: no bookie serves an entry, or the target refuses. So an unrepairable position
is not copied repeatedly (R38). After a crash or an early stop, the target has entries that the metadata does not
mention. They are harmless: the next attempt usually chooses the same target and replaces them, and the collection
deletes the rest. The outcome is returned as a value: no behaviour of a bookie raises an exception here.

R rules are defined in docs/failure-model.md, S rules in docs/invariants.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bookie.client.access import stored_digest
from bookie.metadata.ledgers.ledgers import Versioned
from bookie.model.errors import InvariantError
from bookie.model.ids import BookieId, EntryId
from bookie.model.topology import DEFAULT_RACK, Location
from bookie.runtime.clock import Clock
from bookie.wire.port import READ_ENTRIES_MAX, Transport
from replicator.copying.copy_run import CopyRun
from replicator.copying.outcome import CopyOutcome, MayContinue, NoteFound, NoteLacking, note_no_found, note_no_lacking
from replicator.copying.pace import CopyPace, PacedReads
from replicator.copying.pull import Pulls
from replicator.copying.receiver import (
    PositionCopy,
)
from replicator.copying.sources import EntrySource
from replicator.copying.throttle import ByteBudget
from replicator.copying.transfer_slots import SLOTS_MAX, TransferSlots
from replicator.knowledge.evidence import BookieAnswer


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
        outcomes = await CopyRun(self, ledger, copies, may_continue, rank, note_lacking, note_found).run()
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
