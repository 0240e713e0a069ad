"""Which copied steps the metadata may name, given what the store shows about their bookies."""

from __future__ import annotations

import pytest

from bookie.metadata.bookies.incarnations import Latest
from bookie.metadata.bookies.registration import (
    BookieObservation,
    Bookies,
    Registration,
)
from bookie.metadata.bookies.service_info import PROPERTY_INCARNATION, ServiceInfo
from bookie.metadata.port import Check
from bookie.model.availability import EntryRuns
from bookie.model.ids import BookieId, EntryId
from replicator.plan import installable as module
from replicator.plan.installable import CopiedStep, Installable, installable, with_few_targets
from replicator.plan.steps import Cause, CopyPosition, SwapMember
from tests.worlds.ledgers import name_set, names

A, B, T = map(BookieId, "abt")


def copied(target: BookieId = T, *, cause: Cause = Cause.UNREGISTERED, disks: str = "1") -> CopiedStep:
    """Return a copy of the position of b."""
    step = CopyPosition(
        fragment_index=0,
        position=1,
        old=B,
        target=target,
        cause=cause,
        first=EntryId(0),
        last=EntryId(9),
        write_quorum=2,
        sources=(A, None),
    )
    return CopiedStep(step, incarnation=disks)


class State:
    """What the store shows: the disks that registered bookies serve, and the disks recorded under a name."""

    def __init__(self, serving: dict[BookieId, str], recorded: dict[BookieId, str], read_only: str = "") -> None:
        self.bookies = Bookies(frozenset(serving) - name_set(read_only), name_set(read_only))
        self.registrations = {
            bookie: Registration(ServiceInfo((), ((PROPERTY_INCARNATION, disks),)), czxid)
            for czxid, (bookie, disks) in enumerate(serving.items())
        }
        self.latest = {bookie: Latest(disks, Check("/", 0)) for bookie, disks in recorded.items()}

    def judge(self, *copies: CopiedStep, draining: str = "", before: State | None = None) -> Installable:
        bookies = self.bookies.with_draining(name_set(draining)) if draining else self.bookies
        seen = BookieObservation(bookies, self.registrations, self.latest)
        return installable(copies, bookies, seen, (before or self).registrations)


def test_a_copy_on_the_same_disks_of_a_writable_target_is_installed() -> None:
    found = State({A: "1", T: "1"}, {T: "1"}).judge(copied())
    assert found == Installable(steps=(copied(),), unwritable=(), without_disks=(), again=frozenset())


@pytest.mark.parametrize("state", [State({A: "1"}, {T: "1"}), State({A: "1", T: "1"}, {T: "1"}, read_only="t")])
def test_a_target_that_is_not_writable_any_more_is_refused(state: State) -> None:
    found = state.judge(copied())
    assert (found.steps, found.unwritable) == ((), (T,))


def test_a_copy_for_a_lost_bookie_that_has_returned_is_dropped() -> None:
    state = State({A: "1", B: "1", T: "1"}, {T: "1"})
    assert not state.judge(copied()).steps
    assert state.judge(copied(cause=Cause.FLAPPING)).steps, "it has returned too often"


def test_a_copy_for_a_drained_bookie_is_dropped_if_the_drain_was_withdrawn() -> None:
    state = State({A: "1", B: "1", T: "1"}, {T: "1"}, read_only="b")
    assert state.judge(copied(cause=Cause.DRAINING), draining="b").steps
    assert not state.judge(copied(cause=Cause.DRAINING)).steps


def test_a_copy_on_other_disks_is_dropped_and_refused_until_the_new_ones_serve() -> None:
    found = State({A: "1", T: "1"}, {T: "2"}).judge(copied())
    assert (found.steps, found.without_disks) == ((), (T,))
    found = State({A: "1", T: "2"}, {T: "2"}).judge(copied())
    assert (found.steps, found.without_disks) == ((), ()), "the entries are copied again, to the new disks"


def test_a_target_without_recorded_disks_is_asked_again_if_it_has_registered_again() -> None:
    before, now = State({T: ""}, {}), State({A: "1", T: ""}, {})
    assert now.judge(copied(disks="")).steps
    found = now.judge(copied(disks=""), before=before)
    assert (found.steps, found.again) == ((), frozenset({T}))


def test_a_copy_without_accepted_entries_is_dropped_if_a_bookie_that_may_have_them_is_back() -> None:
    state = State({A: "1", T: "1"}, {T: "1"})
    without = CopiedStep(copied().step, incarnation="1", left_out=EntryRuns.of([EntryId(3)]), absent=frozenset({A}))
    assert not state.judge(without).steps
    assert without.bookies == {A, B, T}


def test_a_change_of_only_the_metadata_depends_on_no_disks() -> None:
    swap = CopiedStep(SwapMember(fragment_index=0, position=1, old=B, target=T))
    found = State({A: "1", T: "1"}, {T: "2"}).judge(swap)
    assert (found.steps, found.without_disks) == ((swap,), ())


def test_one_write_names_a_limited_number_of_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TARGETS_MAX", 2)
    copies = [copied(target) for target in names("t u t v")]
    assert [copy.step.target for copy in with_few_targets(copies)] == list(names("t u t"))
