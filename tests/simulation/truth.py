"""The true state of a history, and the rules for each moment of it.

The oracles are general, not made for single defects. They check every acknowledgement, change of metadata, answer of
a bookie, collection and deletion of a task as it happens (invariants I1 to I18), and the whole cluster at the end
(I19). A broken rule is recorded and the history stops; the code under test cannot suppress it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from bookie.metadata.layout import (
    READ_ONLY,
    LayoutKind,
    available_path,
    ledger_id_of,
    locks_path,
    task_ledger_id,
    tasks_path,
)
from bookie.metadata.ledgers.serde import decode
from bookie.metadata.own_state import own_path
from bookie.metadata.port import ANY_VERSION
from bookie.metadata.tasks.decisions import Decision
from bookie.metadata.tasks.format import decode_task
from bookie.model.errors import BkhealError
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import LedgerMetadata
from bookie.model.packet import packet_ids
from bookie.model.records import decode_record
from bookie.wire.port import AddBatch, EntryResult, ListReply, Status
from tests.simulation.store import SimCell
from tests.simulation.trace import Trace

ROOT = "/ledgers"


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken rule."""

    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.text}"


@dataclass(slots=True)
class LedgerTruth:
    """The true state of one ledger, known from its applications and from the disks."""

    payloads: dict[EntryId, bytes] = field(default_factory=dict)
    """All entries that were ever given to a writer."""
    packets: dict[EntryId, bytes] = field(default_factory=dict)
    """The first stored form of each entry."""
    acked: set[EntryId] = field(default_factory=set)
    holders: dict[EntryId, set[BookieId]] = field(default_factory=lambda: defaultdict(set))
    """For each entry, the bookies that acknowledged it, including bookies whose disks were wiped later."""
    named: set[BookieId] = field(default_factory=set)
    """All bookies that its metadata ever named."""
    ever_missing: set[BookieId] = field(default_factory=set)
    """All bookies that its tasks ever named."""
    was_misplaced: bool = False
    """Whether a task ever requested better placement."""
    is_deleted: bool = False
    is_forgotten: bool = False
    """Whether an Apache bookie has lost entries and fences of the ledger without a record of the loss. Its denials are
    false, and it accepts adds that it refused before. Only another protocol could prevent this, so it is no violation.
    """
    forgotten: dict[BookieId, set[EntryId]] = field(default_factory=dict)
    """The lost entries of such bookies."""
    is_recovered_by_application: bool = False
    """Whether a client other than a worker began a recovery. It accepts the denials of bookies, and may hide their
    losses.
    """
    is_cut: bool = False
    """Whether an application closed it before entries that such a bookie had lost."""
    is_loss_expected: bool = False
    """Whether more disks were lost than its quorums survive. Its losses must be reported, and are no violation."""


@dataclass(frozen=True, slots=True)
class Collecting:
    """A ledger's metadata and the entries on the bookie at the start of a collection."""

    metadata: LedgerMetadata | None
    held: dict[EntryId, bytes]


class Truth:
    """The true state of a history, with the checks of its rules."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.violations: list[Violation] = []
        self.violated: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ledgers: dict[LedgerId, LedgerTruth] = {}
        self.metadata: dict[LedgerId, LedgerMetadata] = {}
        self.held: dict[BookieId, dict[LedgerId, dict[EntryId, bytes]]] = defaultdict(lambda: defaultdict(dict))
        self.roles: dict[int, str] = {}
        self.rotten: set[BookieId] = set()
        self.is_loss_expected = False
        """Whether more disks were lost than the quorums survive."""
        self._fenced: set[tuple[BookieId, LedgerId]] = set()
        self._denied: set[tuple[BookieId, LedgerId, EntryId]] = set()
        self._served: defaultdict[tuple[BookieId, LedgerId], set[EntryId]] = defaultdict(set)
        """The entries that a bookie served when they were last read, even if it did not acknowledge them: it may have
        stored an add before a crash. Bookies that do not list their entries prove them in this way."""
        self._gone: set[tuple[BookieId, LedgerId]] = set()
        self._ids: set[LedgerId] = set()
        self._replaced: dict[BookieId, dict[LedgerId, dict[EntryId, bytes]]] = {}
        """The entries of wiped disks until the new disks are recorded. Until then, no process can know of the loss."""
        self._forgetful: set[BookieId] = set()
        """Apache's bookies with replaced disks."""
        self._histories = own_path("incarnations", ROOT)
        self._decisions = own_path("decisions", ROOT)
        self.destroyed: set[BookieId] = set()
        """The bookies whose disks were destroyed. They never return."""
        self._accepted: dict[LedgerId, frozenset[EntryId]] = {}
        """The entries of each ledger that an operator accepted as lost, by the present record."""
        self._once_accepted: defaultdict[LedgerId, set[EntryId]] = defaultdict(set)
        """Those of all records."""
        self._tasks = tasks_path(ROOT)
        self._locks = locks_path(ROOT)
        self._lockers: dict[LedgerId, str] = {}
        """The owner of the lock of each locked ledger."""
        self._unlocked: set[tuple[str, LedgerId]] = set()
        """The owners whose lock of a ledger ended without an action of a worker, and that have not locked it again."""
        self.tasks: dict[LedgerId, frozenset[BookieId]] = {}
        """The bookies named by each task."""
        self.touched_s: dict[LedgerId, float] = {}
        """When the task, lock or metadata of each ledger last changed."""
        self.on_change: Callable[[str, LedgerId, int, LedgerMetadata, LedgerMetadata], None] = lambda *change: None
        self.cell: SimCell

    def fail(self, rule: str, text: str) -> None:
        """Record a broken rule and end the history."""
        self.violations.append(Violation(rule, text))
        self.trace.event("ORACLE", f"{rule} broken: {text}")
        if not self.violated.done():
            self.violated.set_result(None)

    def of(self, ledger_id: LedgerId) -> LedgerTruth:
        """Return the true state of one ledger."""
        found = self.ledgers.get(ledger_id)
        if found is None:
            found = self.ledgers[ledger_id] = LedgerTruth()
        return found

    def acked_count(self) -> int:
        """Return the number of acknowledged entries in this history."""
        return sum(len(ledger.acked) for ledger in self.ledgers.values())

    # Applications

    def offered(self, ledger_id: LedgerId, entry_id: EntryId, payload: bytes) -> None:
        """Note that an entry was given to a writer."""
        self.of(ledger_id).payloads[entry_id] = payload

    def acknowledged(self, who: str, ledger_id: LedgerId, entry_id: EntryId) -> None:
        """Check I1 and I2 when an entry is acknowledged."""
        truth = self.of(ledger_id)
        self.trace.event(who, f"acked {ledger_id}/{entry_id}")
        if entry_id and EntryId(entry_id - 1) not in truth.acked:
            self.fail("I1", f"{who}: entry {ledger_id}/{entry_id} was acknowledged before the preceding one")
        truth.acked.add(entry_id)
        metadata = self.metadata.get(ledger_id)
        if metadata is None:
            return
        if metadata.last_entry_id is not None and entry_id > metadata.last_entry_id:
            if truth.is_forgotten:
                truth.is_cut = True
                return
            self.fail("I2", f"{who}: {ledger_id}/{entry_id} acknowledged, closed at {metadata.last_entry_id}")
            return
        copies = self._copies(metadata, ledger_id, entry_id)
        if copies < metadata.ack_quorum and not truth.is_loss_expected:
            members = metadata.fragments[metadata.fragment_index(entry_id)].members
            self.fail("I1", f"{who}: {ledger_id}/{entry_id} acknowledged with {copies} copies in {members}")

    def was_read(self, who: str, ledger_id: LedgerId, entry_id: EntryId, payload: bytes) -> None:
        """Check that a read entry always has the same bytes and is confirmed (I5, I14)."""
        truth = self.of(ledger_id)
        if truth.payloads.get(entry_id) != payload:
            self.fail("I14", f"{who}: {ledger_id}/{entry_id} read as {payload!r}")
        self.may_be_read(who, ledger_id, entry_id)

    def may_be_read(self, who: str, ledger_id: LedgerId, last: int) -> None:
        """Check I5: an entry confirmed for readers has reached the ack quorum."""
        metadata = self.metadata.get(ledger_id)
        if metadata is None or last < 0:
            return
        truth = self.of(ledger_id)
        if metadata.last_entry_id is not None:
            if last > metadata.last_entry_id and not truth.is_cut:
                self.fail("I5", f"{who}: {ledger_id} readable to {last}, closed at {metadata.last_entry_id}")
        elif len(truth.holders[EntryId(last)]) < metadata.ack_quorum and EntryId(last) not in truth.acked:
            self.fail("I5", f"{who}: confirmed {ledger_id}/{last}, only on {sorted(truth.holders[EntryId(last)])}")

    # Bookies

    def holds(self, bookie: BookieId, ledger_id: LedgerId) -> frozenset[EntryId]:
        """Return the entries that a bookie acknowledged and that no wipe or collection removed."""
        ledgers = self.held.get(bookie)
        return frozenset(ledgers[ledger_id]) if ledgers is not None and ledger_id in ledgers else frozenset()

    def lacks(self, bookie: BookieId, ledger_id: LedgerId, wanted: Iterable[int]) -> frozenset[int]:
        """Return the entries of ``wanted`` that a bookie lacks, as far as any process can detect it.

        A disk may be lost at any moment, even just before its use. Such a loss counts like one a moment later: once
        the new disks are recorded, the entries that the metadata places on them are in limbo.
        """
        missing = frozenset(wanted) - self.holds(bookie, ledger_id) - self._served[bookie, ledger_id]
        return missing - self._replaced[bookie].get(ledger_id, {}).keys() if bookie in self._replaced else missing

    def is_fenced(self, bookie: BookieId, ledger_id: LedgerId) -> bool:
        """Whether a bookie has acknowledged a fence, on its present or earlier disks."""
        return (bookie, ledger_id) in self._fenced

    def stored(self, bookie: BookieId, batch: AddBatch, *, was_fenced: bool) -> None:
        """Check a bookie's acknowledgement of a batch: I11, I12, I14.

        ``was_fenced``: whether the ledger was fenced when the batch arrived. The answer to an earlier batch may follow
        the fence if the recovery sees its entries (I12).
        """
        ledger_id = batch.ledger_id
        truth = self.of(ledger_id)
        if not batch.is_recovery and was_fenced:
            self.fail("I11", f"{bookie} accepted an add to {ledger_id} after it had answered a fence")
        held = self.held[bookie][ledger_id]
        self._gone.discard((bookie, ledger_id))
        for packet in batch.entries:
            entry_id = packet_ids(packet)[1]
            if not batch.is_recovery and (bookie, ledger_id, entry_id) in self._denied:
                self.fail("I12", f"{bookie} accepted {ledger_id}/{entry_id} after it had denied it to a recovery")
            first = truth.packets.setdefault(entry_id, packet)
            if first != packet:
                self.fail("I14", f"{bookie} received other bytes for {ledger_id}/{entry_id} than earlier bookies")
            held[entry_id] = packet
            truth.holders[entry_id].add(bookie)

    def fenced(self, bookie: BookieId, ledger_id: LedgerId) -> None:
        """Note that a bookie acknowledged a fence."""
        self._fenced.add((bookie, ledger_id))

    def answered(
        self,
        bookie: BookieId,
        ledger_id: LedgerId,
        held_before: frozenset[EntryId],
        results: Sequence[EntryResult],
        *,
        is_fencing: bool,
    ) -> None:
        """Check the answers of a read: I12, I13, I14.

        ``held_before``: the entries of the bookie when the request arrived.
        """
        truth = self.of(ledger_id)
        for result in results:
            if result.status is Status.OK:
                first = truth.packets.get(result.entry_id)
                if first is not None and first != result.packet:
                    self.fail("I14", f"{bookie} serves other bytes for {ledger_id}/{result.entry_id}")
                self._served[bookie, ledger_id].add(result.entry_id)
            elif result.status.is_absent:
                self._served[bookie, ledger_id].discard(result.entry_id)
                is_kept = (bookie, ledger_id) not in self._gone
                if is_kept and (result.entry_id in held_before or self._lost(bookie, ledger_id, result.entry_id)):
                    self.fail(
                        "I13",
                        f"{bookie} answered {result.status.name} for {ledger_id}/{result.entry_id}, stored before",
                    )
                if is_fencing:
                    self._denied.add((bookie, ledger_id, result.entry_id))

    def listed(self, bookie: BookieId, ledger_id: LedgerId, held_before: frozenset[EntryId], reply: ListReply) -> None:
        """Check a list with the status OK, which must be complete (I13)."""
        if reply.status is Status.OK and (bookie, ledger_id) not in self._gone:
            missing = held_before - frozenset(reply.entries)
            if missing:
                self.fail("I13", f"{bookie} lists {ledger_id} without {sorted(missing)}")
        # A list counts like an acknowledgement, because its reader relies on the entries.
        truth = self.of(ledger_id)
        for number in reply.entries:
            entry_id = EntryId(number)
            if entry_id in truth.packets:
                self.held[bookie][ledger_id].setdefault(entry_id, truth.packets[entry_id])
                truth.holders[entry_id].add(bookie)

    def wiped(self, bookie: BookieId, *, is_recorded: bool = True) -> None:
        """Note that a bookie has new, empty disks. ``is_recorded``: it will record them, unlike Apache's bookies."""
        if not is_recorded:
            self._forget(bookie)
        for place in [place for place in self._served if place[0] == bookie]:
            del self._served[place]
        lost = self._replaced.setdefault(bookie, {})
        for ledger_id, entries in self.held.pop(bookie, {}).items():
            lost[ledger_id] = lost.get(ledger_id, {}) | entries

    def _forget(self, bookie: BookieId) -> None:
        self._forgetful.add(bookie)
        self._fenced = {key for key in self._fenced if key[0] != bookie}
        self._denied = {key for key in self._denied if key[0] != bookie}
        for ledger_id, truth in self.ledgers.items():
            metadata, held = self.metadata.get(ledger_id), self.holds(bookie, ledger_id)
            if held or (metadata is not None and bookie in metadata.members()):
                truth.is_forgotten = True
                truth.forgotten.setdefault(bookie, set()).update(held)

    def marked(self, bookie: BookieId, ledger_ids: Iterable[LedgerId]) -> None:
        """Note that an operator marked these ledgers because this Apache bookie has new disks."""
        lost = self._replaced.get(bookie, {})
        for ledger_id in ledger_ids:
            lost.pop(ledger_id, None)

    def has_unknown_losses(self) -> bool:
        """Whether a ledger names a bookie that lost copies of it, which no process can know yet."""
        return any(
            bookie in self.metadata[ledger_id].members()
            for bookie, lost in self._replaced.items()
            for ledger_id in lost
            if ledger_id in self.metadata
        )

    def recovered_by_application(self, ledger_id: LedgerId) -> None:
        """Note that a client other than a worker started a recovery."""
        self.of(ledger_id).is_recovered_by_application = True

    def doom(self) -> None:
        """Note that more disks were lost than quorums survive. Reported losses of existing ledgers are no violation."""
        self.is_loss_expected = True
        for ledger in self.ledgers.values():
            ledger.is_loss_expected = True

    def restarted(self, bookie: BookieId, ledger_id: LedgerId, entries: Iterable[int]) -> None:
        """Check after a crash that no acknowledged entry is lost (I15)."""
        missing = self.holds(bookie, ledger_id) - frozenset(EntryId(entry_id) for entry_id in entries)
        if missing:
            self.fail("I15", f"{bookie} lost {ledger_id} entries {sorted(missing)} in a crash")

    def begins_to_collect(self, bookie: BookieId, ledger_id: LedgerId) -> Collecting:
        """Note that a collector starts a deletion. From then on, the bookie has only the entries added later."""
        return Collecting(self.metadata.get(ledger_id), self.held[bookie].pop(ledger_id, {}))

    def collected(
        self, bookie: BookieId, ledger_id: LedgerId, before: Collecting, *, is_collected: bool, is_apache: bool
    ) -> None:
        """Check I16 with the state at the moment of the deletion. I17 covers the loss of a copy reserved there.

        Only the collector's lock protects against the collector of an Apache bookie. If the lock was deleted by hand or
        ended with its session, a repair may name the bookie before the deletion, and cannot detect it (R89). A ledger
        without entries loses nothing by either collector, so a repair reserves nothing for it (R118).
        """
        if not is_collected:
            self.held[bookie][ledger_id] = before.held | self.held[bookie][ledger_id]
            return
        self.trace.event(bookie, f"collected {ledger_id}")
        metadata = before.metadata
        if metadata is not None and not metadata.is_closed:
            self.fail("I16", f"{bookie} collected {ledger_id}, which is {metadata.state.name}")
        elif metadata is not None and bookie in metadata.members() and not metadata.is_empty:
            is_unlocked = is_apache and (bookie, ledger_id) in self._unlocked
            if not is_unlocked:
                self.fail("I16", f"{bookie} collected {ledger_id} and is a member of it")
            elif _places_entries(metadata, bookie):
                self.of(ledger_id).is_loss_expected = True
        self._gone.add((bookie, ledger_id))

    # Metadata

    def changed(self, session: int, path: str, before: bytes | None, after: bytes | None, version: int | None) -> None:
        """Check every change in the store."""
        ledger_id = ledger_id_of(LayoutKind.HIERARCHICAL, ROOT, path)
        if ledger_id is not None:
            self._touch(ledger_id)
            self._ledger_changed(self.roles.get(session, "?"), session, ledger_id, before, after, version)
        elif path.startswith(self._tasks):
            task_id = task_ledger_id(path.rpartition("/")[2])
            if task_id is not None:
                self._touch(task_id)
                self._task_changed(self.roles.get(session, "?"), task_id, before, after)
        elif path.startswith(self._locks):
            task_id = task_ledger_id(path.rpartition("/")[2])
            if task_id is not None:
                self._touch(task_id)
                self._lock_changed(self.roles.get(session, "?"), task_id, is_there=after is not None)
        elif path.startswith(self._decisions):
            self._decided(path.rpartition("/")[2], after)
        elif path.startswith(self._histories):
            self._replaced.pop(BookieId(path.rpartition("/")[2]), None)

    def _decided(self, name: str, after: bytes | None) -> None:
        if not name.isdigit():
            return
        ledger_id = LedgerId(int(name))
        decision = None if after is None else decode_record(after, Decision, ledger_id=ledger_id)
        lost = decision.lost if decision is not None and decision.is_accepted else ()
        self._accepted[ledger_id] = frozenset(entry_id for part in lost for entry_id in part.lost_entries)
        self._once_accepted[ledger_id] |= self._accepted[ledger_id]

    def without_lost(
        self, ledger_id: LedgerId, metadata: LedgerMetadata, missing: Iterable[EntryId]
    ) -> frozenset[EntryId]:
        """Return the entries of ``missing`` that a member must have: an operator did not accept their loss, or a bookie
        that was not destroyed, and on which the metadata places the entry, has a copy.
        """
        accepted = self._accepted.get(ledger_id, frozenset())
        return frozenset(
            entry_id
            for entry_id in missing
            if entry_id not in accepted
            or any(entry_id in self.holds(bookie, ledger_id) for bookie in _write_set(metadata, entry_id))
        )

    def accepted_losses(self, ledger_id: LedgerId) -> frozenset[EntryId]:
        """Return the entries that an operator accepted as lost and of which no member has a copy."""
        accepted = self._accepted.get(ledger_id, frozenset())
        return accepted - self.without_lost(ledger_id, self.metadata[ledger_id], accepted) if accepted else accepted

    def destroy(self, bookie: BookieId) -> None:
        """Note that a bookie and its disks are lost forever. Ledgers may lose entries, which an operator accepts."""
        self.destroyed.add(bookie)
        self.held.pop(bookie, None)
        for place in [place for place in self._served if place[0] == bookie]:
            del self._served[place]

    def _lock_changed(self, who: str, ledger_id: LedgerId, *, is_there: bool) -> None:
        if is_there:
            self._lockers[ledger_id] = who
            self._unlocked.discard((who, ledger_id))
        elif (holder := self._lockers.pop(ledger_id, None)) is not None and not who.startswith("worker"):
            self._unlocked.add((holder, ledger_id))

    def _touch(self, ledger_id: LedgerId) -> None:
        self.touched_s[ledger_id] = asyncio.get_running_loop().time()

    def _task_changed(self, who: str, ledger_id: LedgerId, before: bytes | None, after: bytes | None) -> None:
        if after is not None:
            named = frozenset(decode_task(after).missing)
            self.tasks[ledger_id] = named
            self.of(ledger_id).ever_missing |= named
            self.of(ledger_id).was_misplaced |= not named
            return
        self.tasks.pop(ledger_id, None)
        if before is not None:
            self._task_gone(who, ledger_id, before)

    def _ledger_changed(
        self,
        who: str,
        session: int,
        ledger_id: LedgerId,
        before: bytes | None,
        after: bytes | None,
        version: int | None,
    ) -> None:
        if after is None:
            self.trace.event(who, f"deleted ledger {ledger_id}")
            self.metadata.pop(ledger_id, None)
            self.of(ledger_id).is_deleted = True
            return
        try:
            new = decode(after)
        except BkhealError as error:
            self.fail("I7", f"{who} wrote invalid metadata for {ledger_id}: {error}")
            return
        self.trace.event(who, f"ledger {ledger_id} is {describe(new)}")
        old = self.metadata.get(ledger_id)
        self.metadata[ledger_id] = new
        truth = self.of(ledger_id)  # from its creation on, because it can be doomed without entries
        truth.is_loss_expected |= self.is_loss_expected and not self._replaced.keys().isdisjoint(new.members())
        if old is None:
            if before is None and ledger_id in self._ids:
                self.fail("I10", f"{who} created ledger {ledger_id} again")
            self._ids.add(ledger_id)
        else:
            if version == ANY_VERSION:
                self.fail("I9", f"{who} changed ledger {ledger_id} without comparing its version")
            self._check_transition(who, ledger_id, old, new)
            self.on_change(who, ledger_id, session, old, new)
        truth.named.update(new.members())
        for fragment in new.fragments:
            if len(set(fragment.members)) != new.ensemble_size:
                self.fail("I6", f"{who}: {ledger_id} fragment {fragment.first_entry_id} names {fragment.members}")
        if new.fragments[0].first_entry_id != 0:
            self.fail("I7", f"{who}: {ledger_id} begins at {new.fragments[0].first_entry_id}")

    def _check_transition(self, who: str, ledger_id: LedgerId, old: LedgerMetadata, new: LedgerMetadata) -> None:
        truth = self.of(ledger_id)
        if old.is_closed and (old.state, old.last_entry_id, old.length) != (new.state, new.last_entry_id, new.length):
            self.fail("I4", f"{who} changed closed ledger {ledger_id}: {describe(old)} to {describe(new)}")
        if new.last_entry_id is not None and not old.is_closed:
            beyond = [entry_id for entry_id in truth.acked if entry_id > new.last_entry_id]
            if beyond and truth.is_forgotten and not (who.startswith("worker") and self._shows_loss(ledger_id, old)):
                truth.is_cut = True
            elif beyond:
                self.fail("I3", f"{who} closed {ledger_id} at {new.last_entry_id}, {max(beyond)} was acknowledged")
            if not truth.is_cut:
                self._check_length(who, ledger_id, new)
            for number in range(new.last_entry_id + 1):
                copies = self._copies(new, ledger_id, EntryId(number))
                if copies < new.ack_quorum and not truth.is_loss_expected:
                    self.fail("T4", f"{who} closed {ledger_id} at {new.last_entry_id}, {number} has {copies} copies")
                    break
        self._check_owner(who, ledger_id, old, new)

    def _shows_loss(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> bool:
        """Whether a recovery with answers of all members can detect that one lost certainly acknowledged entries.

        An entry was certainly acknowledged if a later entry of another registered member confirms it. Otherwise the
        denial of such a bookie looks like that of a bookie that never had the entry. The same is true after a recovery
        by an application, which copies the entries that it reads to all members.
        """
        truth = self.of(ledger_id)
        if truth.is_recovered_by_application:
            return False
        members = metadata.last_fragment.members
        for bookie, lost in truth.forgotten.items():
            others = [m for m in members if m in self.registered() and m not in truth.forgotten]
            confirmed = max((packet_lac(p) for m in others for p in self.held[m][ledger_id].values()), default=-1)
            if bookie in members and any(entry_id <= confirmed for entry_id in lost):
                return True
        return False

    def registered(self) -> frozenset[BookieId]:
        """Return the currently registered bookies."""
        names: set[str] = set()
        for is_read_only in (False, True):
            path = available_path(ROOT, is_read_only=is_read_only)
            names.update(self.cell.children(path).names if self.cell.stat(path) is not None else ())
        return frozenset(BookieId(name) for name in names if name != READ_ONLY)

    def registration_changes(self) -> int:
        """Return the number of registrations created or removed so far."""
        stats = [self.cell.stat(available_path(ROOT, is_read_only=is_read_only)) for is_read_only in (False, True)]
        return sum(stat.children_version for stat in stats if stat is not None)

    def _check_length(self, who: str, ledger_id: LedgerId, new: LedgerMetadata) -> None:
        truth = self.of(ledger_id)
        if not truth.payloads or new.last_entry_id is None:
            return
        length = sum(len(truth.payloads.get(EntryId(number), b"")) for number in range(new.last_entry_id + 1))
        if length != new.length:
            self.fail("I3", f"{who} closed {ledger_id} with length {new.length}, its entries have {length}")

    def _check_owner(self, who: str, ledger_id: LedgerId, old: LedgerMetadata, new: LedgerMetadata) -> None:
        """Check I8 and I17: closed fragments only replace members, new members have every entry, ids and order stay."""
        shared = [fragment.first_entry_id for fragment in new.fragments[: len(old.fragments)]]
        kept = old.fragments if new.fragments[: len(old.fragments)] == old.fragments else None
        if kept is None:
            if shared[:-1] != [fragment.first_entry_id for fragment in old.fragments[:-1]]:
                self.fail("I8", f"{who} moved fragments of {ledger_id}: {describe(old)} to {describe(new)}")
                return
            if len(new.fragments) < len(old.fragments):
                self.fail("I8", f"{who} dropped fragments of {ledger_id}: {describe(old)} to {describe(new)}")
                return
        for index, before in enumerate(old.fragments):
            after = new.fragments[index]
            is_live = index == len(old.fragments) - 1 and not old.is_closed
            if before.members == after.members or is_live:
                continue
            last = old.fragment_last_entry_id(index)
            for position, bookie in enumerate(after.members):
                if bookie == before.members[position] or last is None:
                    continue
                wanted = old.stripe.entries(position, before.first_entry_id, last)
                missing = self.without_lost(ledger_id, old, map(EntryId, self.lacks(bookie, ledger_id, wanted)))
                if missing:
                    self.fail("I17", f"{who} named {bookie} in {ledger_id}, which lacks {sorted(missing)}")
        last_index = len(old.fragments) - 1
        is_repair = who.startswith("worker") and not old.is_closed and old.state is new.state
        if is_repair and new.fragments[last_index:] != old.fragments[last_index:]:
            self.fail("I8", f"{who} changed the open end of {ledger_id}: {describe(old)} to {describe(new)}")

    def _task_gone(self, who: str, ledger_id: LedgerId, before: bytes) -> None:
        """Check I18: bookies that the task names are no longer members or have every entry, or the ledger is deleted.

        In the last two fragments of an unclosed ledger, they must have every acknowledged entry that they once had.
        The client that closes the ledger marks their other missing copies.
        """
        metadata = self.metadata.get(ledger_id)
        self.trace.event(who, f"completed task {ledger_id}")
        if metadata is None or self.of(ledger_id).is_loss_expected:
            return
        named = frozenset(decode_task(before).missing)
        settled = metadata.fragments if metadata.is_closed else metadata.fragments[:-2]
        for index, fragment in enumerate(settled):
            last = metadata.fragment_last_entry_id(index)
            for position, bookie in enumerate(fragment.members):
                if bookie not in named or last is None or bookie in self.rotten:
                    continue
                wanted = metadata.stripe.entries(position, fragment.first_entry_id, last)
                missing = self.without_lost(ledger_id, metadata, map(EntryId, self.lacks(bookie, ledger_id, wanted)))
                if missing:
                    self.fail("I18", f"{who} completed {ledger_id}, {bookie} still lacks {sorted(missing)}")
        for bookie in sorted(named - self.rotten):
            never_had = self.lacks(
                bookie, ledger_id, self._once_acknowledged(metadata, ledger_id, bookie, len(settled))
            )
            if never_had:
                self.fail("I18", f"{who} completed open {ledger_id}, {bookie} still lacks {sorted(never_had)}")

    def _once_acknowledged(
        self, metadata: LedgerMetadata, ledger_id: LedgerId, bookie: BookieId, first_index: int
    ) -> Iterator[EntryId]:
        """Yield the acknowledged entries that a bookie ever stored in the fragments from ``first_index`` on."""
        truth = self.of(ledger_id)
        if first_index < len(metadata.fragments):
            start = metadata.fragments[first_index].first_entry_id
            for entry_id in sorted(each for each in truth.acked if each >= start):
                if bookie in truth.holders[entry_id] and bookie in _write_set(metadata, entry_id):
                    yield entry_id

    def is_short(self, bookie: BookieId, ledger_id: LedgerId, metadata: LedgerMetadata) -> bool:
        """Whether a bookie lacks an entry of a closed ledger's positions."""
        for index, fragment in enumerate(metadata.fragments):
            last = metadata.fragment_last_entry_id(index)
            for position, member in enumerate(fragment.members):
                if member == bookie and last is not None:
                    wanted = metadata.stripe.entries(position, fragment.first_entry_id, last)
                    if not self.holds(bookie, ledger_id).issuperset(wanted):
                        return True
        return False

    def _copies(self, metadata: LedgerMetadata, ledger_id: LedgerId, entry_id: EntryId) -> int:
        """Return how many members of the stored write set acknowledged the entry."""
        holders = self.of(ledger_id).holders[entry_id]
        return sum(bookie in holders for bookie in _write_set(metadata, entry_id))

    def _lost(self, bookie: BookieId, ledger_id: LedgerId, entry_id: EntryId) -> bool:
        """Whether an earlier disk of this bookie had the entry, and the metadata still places the entry on the bookie.

        If the write set of an entry no longer names the bookie, the entry was moved to another one, even if the ledger
        names the bookie in another fragment. The bookie may deny it, and a client with older metadata must read the
        metadata again. A bookie need not have the entries of a deleted ledger either, because a search for the entries
        of its former disks does not find the ledger.
        """
        if self.of(ledger_id).is_deleted or bookie in self._forgetful:
            return False
        metadata = self.metadata.get(ledger_id)
        if metadata is not None and bookie not in _write_set(metadata, entry_id):
            return False
        if entry_id in self._once_accepted[ledger_id]:
            return False  # it was collected there before its other copies were destroyed
        return bookie in self.of(ledger_id).holders[entry_id] and entry_id not in self.holds(bookie, ledger_id)


def _write_set(metadata: LedgerMetadata, entry_id: EntryId) -> list[BookieId]:
    """Return the bookies on which the metadata places an entry."""
    members = metadata.fragments[metadata.fragment_index(entry_id)].members
    return [members[position] for position in metadata.stripe.write_set(entry_id)]


def _places_entries(metadata: LedgerMetadata, bookie: BookieId) -> bool:
    """Whether a closed ledger's metadata puts an entry on a bookie."""
    for index, fragment in enumerate(metadata.fragments):
        last = metadata.fragment_last_entry_id(index)
        for position, member in enumerate(fragment.members):
            if member == bookie and last is not None:
                wanted = metadata.stripe.entries(position, fragment.first_entry_id, last)
                if next(wanted, None) is not None:
                    return True
    return False


def packet_lac(packet: bytes) -> int:
    """Return the last add confirmed in a stored entry."""
    return int.from_bytes(packet[16:24], "big", signed=True)


def describe(metadata: LedgerMetadata) -> str:
    """Return the metadata in one line."""
    fragments = " ".join(f"{f.first_entry_id}:[{','.join(f.members)}]" for f in metadata.fragments)
    end = "" if metadata.last_entry_id is None else f" last {metadata.last_entry_id} length {metadata.length}"
    quorums = f"{metadata.ensemble_size}/{metadata.write_quorum}/{metadata.ack_quorum}"
    return f"{metadata.state.name} {quorums} {fragments}{end}"
