"""The writer's state against a slow, simple twin, in any order of events; and the metadata changes it requests."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bookie.client.errors import LedgerFencedError
from bookie.client.writer.ensemble_change import with_new_ensemble
from bookie.client.writer.state import Lane, PendingAdd, WriterState
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import Fragment, LedgerMetadata, LedgerState
from bookie.model.schedule import Stripe
from tests.worlds.ledgers import with_member

SHAPES = [(e, w, a) for e in range(1, 6) for w in range(1, e + 1) for a in range(1, w + 1)]


@dataclass
class TwinMember:
    """The state of one position for one bookie; a revival or a replacement begins a new state."""

    bookie: BookieId
    acked: set[int] = field(default_factory=set)
    is_failed: bool = False


class WriterMachine(RuleBasedStateMachine):
    """Random admissions, batches, acks (late and stale ones too), failures, changes and revivals."""

    @initialize(shape=st.sampled_from(SHAPES), is_patient=st.booleans())
    def start(self, shape: tuple[int, int, int], is_patient: bool) -> None:
        self.ensemble, self.write, self.ack = shape
        self.names = 0
        members = [self.new_bookie() for _ in range(self.ensemble)]
        self.state: WriterState[int] = WriterState(
            members, self.write, self.ack, is_patient=is_patient, incarnations={b: f"{b}-disks" for b in members}
        )
        self.members = [TwinMember(bookie) for bookie in members]
        self.sent: list[tuple[Lane[int], list[PendingAdd[int]], TwinMember]] = []
        self.admitted = self.confirmed = 0
        self.short: set[BookieId] = set()
        self.is_due = False
        self.since: dict[int, int] = {}

    def new_bookie(self) -> BookieId:
        self.names += 1
        return BookieId(f"b{self.names}")

    def positions(self, entry: int) -> tuple[int, ...]:
        return Stripe(self.ensemble, self.write).write_set(entry)

    def has_quorum(self, entry: int) -> bool:
        return sum(entry in self.members[p].acked for p in self.positions(entry)) >= self.ack

    def expect(self, returned: list[PendingAdd[int]]) -> None:
        """Confirm all entries in the twin that can be confirmed, and compare them with the returned ones."""
        first = self.confirmed
        while not self.state.is_changing and self.confirmed < self.admitted and self.has_quorum(self.confirmed):
            for position in self.positions(self.confirmed):
                member = self.members[position]
                if member.is_failed and self.confirmed not in member.acked:
                    self.short.add(member.bookie)
            self.confirmed += 1
        assert [pending.entry_id for pending in returned] == list(range(first, self.confirmed))

    def fail_in_twin(self, position: int) -> None:
        member = self.members[position]
        if member.is_failed:
            return
        member.is_failed = True
        lacks = [n for n in range(self.confirmed) if position in self.positions(n) and n not in member.acked]
        if any(n >= self.taken_over_at(position) for n in lacks):
            self.short.add(member.bookie)

    def taken_over_at(self, position: int) -> int:
        """Return the first entry that the member at this position was to store."""
        return self.since.get(position, 0)

    @rule(count=st.integers(1, 4), size=st.integers(0, 9))
    def admit(self, count: int, size: int) -> None:
        if self.admitted > 60:
            return
        for _ in range(count):
            pending = self.state.admit(b"x" * size, size, self.admitted)
            assert pending.entry_id == self.admitted
            self.admitted += 1

    @rule(position=st.integers(0, 4), entries_max=st.integers(1, 3))
    def send(self, position: int, entries_max: int) -> None:
        lane = self.state.lanes[position % self.ensemble]
        batch = lane.take_batch(entries_max)
        assert not (batch and lane.is_failed)
        if batch:
            assert lane.incarnation in ("", f"{lane.bookie}-disks")
            self.sent.append((lane, batch, self.members[lane.position]))

    @precondition(lambda self: self.sent)
    @rule(which=st.integers(0, 100))
    def answer(self, which: int) -> None:
        lane, batch, member = self.sent.pop(which % len(self.sent))
        is_current = member is self.members[lane.position] and not member.is_failed
        if is_current:
            member.acked.update(pending.entry_id for pending in batch)
        returned = self.state.acknowledge(lane, batch)
        self.expect(returned)

    @rule(position=st.integers(0, 4), is_wiped=st.booleans(), is_change_due=st.booleans())
    def fail(self, position: int, is_wiped: bool, is_change_due: bool) -> None:
        position %= self.ensemble
        member = self.members[position]
        was_failed = member.is_failed
        self.fail_in_twin(position)
        done = self.state.fail(self.state.lanes[position], is_wiped=is_wiped, is_change_due=is_change_due)
        assert done is not was_failed
        if done:
            self.is_due |= is_change_due
            if is_wiped:
                member.acked = {n for n in member.acked if n < self.confirmed}

    @precondition(lambda self: self.state.has_failed_lanes)
    @rule()
    def begin_change(self) -> None:
        self.state.is_changing = True

    @precondition(lambda self: self.state.is_changing)
    @rule(replace_all=st.booleans(), data=st.data())
    def end_change(self, replace_all: bool, data: st.DataObject) -> None:
        failed = [p for p, member in enumerate(self.members) if member.is_failed]
        chosen = failed if replace_all or not failed else data.draw(st.lists(st.sampled_from(failed), unique=True))
        for position in chosen:
            self.members[position] = TwinMember(self.new_bookie())
            self.since[position] = self.confirmed
        names = [member.bookie for member in self.members]
        self.state.replace(names, {name: f"{name}-disks" for name in names})
        self.is_due &= any(member.is_failed for member in self.members)
        self.state.is_changing = False
        self.expect(self.state.confirm())

    @precondition(lambda self: self.state.has_failed_lanes)
    @rule(data=st.data())
    def readmit(self, data: st.DataObject) -> None:
        position = data.draw(st.sampled_from([p for p, member in enumerate(self.members) if member.is_failed]))
        old = self.members[position]
        self.members[position] = TwinMember(old.bookie, {n for n in old.acked if n < self.confirmed})
        self.since[position] = self.confirmed
        self.state.readmit(position)
        self.is_due &= any(member.is_failed for member in self.members)

    @rule()
    def continue_incomplete(self) -> None:
        self.state.continue_incomplete()
        self.is_due = False

    @invariant()
    def equals_the_model(self) -> None:
        if not hasattr(self, "members"):
            return
        state = self.state
        assert state.last_add_confirmed == self.confirmed - 1
        assert state.next_entry_id == self.admitted
        assert state.failed_positions() == tuple(p for p, member in enumerate(self.members) if member.is_failed)
        assert state.incomplete == self.short
        reachable = all(
            sum(not self.members[p].is_failed for p in self.positions(start)) >= self.ack
            for start in range(self.ensemble)
        )
        assert state.is_quorum_reachable is reachable
        assert state.needs_change is self.needs_change()

    def needs_change(self) -> bool:
        for entry in range(self.confirmed, self.admitted):
            lost = [
                p for p in self.positions(entry) if self.members[p].is_failed and entry not in self.members[p].acked
            ]
            limit = self.write - self.ack if self.state.is_patient and not self.is_due else 0
            if len(lost) > limit:
                return True
        return False

    @invariant()
    def counts_what_is_unsettled(self) -> None:
        if not hasattr(self, "members"):
            return
        unsettled = 0
        for entry in range(self.admitted):
            waits = [p for p in self.positions(entry) if entry not in self.members[p].acked]
            if entry < self.confirmed:  # no copy is expected from a failed member, or from one that was not to store it
                waits = [p for p in waits if not self.members[p].is_failed and entry >= self.taken_over_at(p)]
            unsettled += bool(waits)
        assert self.state.unsettled_entries == unsettled
        assert self.state.is_drained is (unsettled == 0 and self.confirmed == self.admitted)

    @invariant()
    def answering_everything_completes_the_writer(self) -> None:
        """Every copy still expected is queued or in flight exactly once, on the lane of the current member."""
        if not hasattr(self, "members"):
            return
        for lane, member in zip(self.state.lanes, self.members, strict=True):
            assert lane.bookie == member.bookie
            outstanding = sorted(pending.entry_id for pending in lane.outstanding())
            if member.is_failed:
                assert outstanding == []
                continue
            expected = [
                n
                for n in range(self.taken_over_at(lane.position), self.admitted)
                if lane.position in self.positions(n) and n not in member.acked
            ]
            assert outstanding == expected


TestWriterState = WriterMachine.TestCase
TestWriterState.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)

BOOKIES = [BookieId(f"b{i}") for i in range(8)]


@st.composite
def ledgers(draw: st.DrawFn) -> LedgerMetadata:
    size = draw(st.integers(1, 4))
    write = draw(st.integers(1, size))
    starts = sorted(draw(st.sets(st.integers(1, 50), max_size=4)))
    fragments = tuple(Fragment(EntryId(start), tuple(draw(st.permutations(BOOKIES))[:size])) for start in [0, *starts])
    return LedgerMetadata(size, write, draw(st.integers(1, write)), fragments, custom=(("a", b"1"),), ctime_ms=5)


@given(ledger=ledgers(), ahead=st.integers(0, 5), data=st.data())
def test_an_ensemble_change_appends_or_replaces_a_fragment_and_changes_nothing_else(
    ledger: LedgerMetadata, ahead: int, data: st.DataObject
) -> None:
    before = ledger.last_fragment
    wanted = Fragment(
        EntryId(before.first_entry_id + ahead), tuple(data.draw(st.permutations(BOOKIES))[: ledger.ensemble_size])
    )
    repaired = ledger
    if len(ledger.fragments) > 1:  # an older fragment was repaired first
        repaired = with_member(ledger, data.draw(st.integers(0, len(ledger.fragments) - 2)), 0, BookieId("repaired"))
    changed = with_new_ensemble(repaired, LedgerId(1), before, wanted, [wanted])
    if before == wanted:
        assert changed is None
        return
    assert changed is not None
    kept = repaired.fragments if ahead else repaired.fragments[:-1]
    assert changed.fragments == (*kept, wanted)
    assert dataclasses.replace(changed, fragments=repaired.fragments) == repaired
    assert with_new_ensemble(changed, LedgerId(1), before, wanted, [wanted]) is None  # our own change is stored


@given(ledger=ledgers(), state=st.sampled_from(LedgerState), data=st.data())
def test_an_ensemble_change_of_a_ledger_taken_from_the_writer_is_refused(
    ledger: LedgerMetadata, state: LedgerState, data: st.DataObject
) -> None:
    before = ledger.last_fragment
    wanted = Fragment(EntryId(before.first_entry_id + 3), (BookieId("w"),) * ledger.ensemble_size)
    found = ledger if state is not LedgerState.CLOSED else ledger.closed(EntryId(99), 1)
    found = dataclasses.replace(found, state=state)
    if state is LedgerState.OPEN:  # another client changed the last fragment
        found = with_member(found, len(found.fragments) - 1, 0, BookieId("stranger"))
    with pytest.raises(LedgerFencedError):
        with_new_ensemble(found, LedgerId(1), before, wanted, [wanted])
    if state is not LedgerState.OPEN:  # even if our own change was stored before
        ours = ledger.with_last_fragment(wanted.first_entry_id, wanted.members)
        ours = ours.closed(EntryId(99), 1) if state is LedgerState.CLOSED else dataclasses.replace(ours, state=state)
        with pytest.raises(LedgerFencedError):
            with_new_ensemble(ours, LedgerId(1), before, wanted, [wanted])
