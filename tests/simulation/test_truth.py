"""What the oracles assume that a process can know: a lost disk, and actions before the loss can be noticed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from itertools import product

from bookie.metadata.layout import lock_path
from bookie.metadata.ledgers.serde import encode
from bookie.metadata.own_state import own_path
from bookie.metadata.tasks.decisions import Decision, DecisionKind, LostFragment
from bookie.model.availability import RunGroup
from bookie.model.digest import digest_for
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import DigestType, Fragment, LedgerMetadata
from bookie.model.packet import pack
from bookie.model.records import encode_record
from bookie.wire.port import AddBatch, EntryResult, Status
from tests.simulation.loop import SimLoop
from tests.simulation.trace import Trace
from tests.simulation.truth import ROOT, Truth

LEDGER = LedgerId(0)
A, B, C = (BookieId(name) for name in "abc")


def on_virtual_time(test: Callable[[Truth], Coroutine[None, None, None]]) -> None:
    loop = SimLoop()

    async def history() -> None:
        await test(Truth(Trace(asyncio.get_running_loop())))

    loop.run_until_complete(history())
    loop.close()


def set_ledger(truth: Truth, *members: BookieId, last: int | None, version: int) -> None:
    metadata = LedgerMetadata(len(members), 2, 2, (Fragment(EntryId(0), members),), password=b"pw")
    data = encode(metadata if last is None else metadata.closed(EntryId(last), 1))
    truth.changed(1, f"{ROOT}/00/0000/L0000", b"" if version else None, data, version)


def store(truth: Truth, *bookies: BookieId) -> None:
    packet = pack(digest_for(DigestType.CRC32C, b"pw"), LEDGER, EntryId(0), -1, 1, b"x")
    for bookie in bookies:
        truth.stored(bookie, AddBatch(LEDGER, b"", [packet]), was_fenced=False)


def record_disks(truth: Truth, bookie: BookieId) -> None:
    truth.changed(1, f"{own_path('incarnations', ROOT)}/{bookie}", b"", b"", 1)


def test_only_a_disk_loss_recorded_before_the_metadata_change_is_a_violation() -> None:
    async def history(truth: Truth, *, is_recorded: bool) -> None:
        set_ledger(truth, A, B, last=None, version=0)
        truth.offered(LEDGER, EntryId(0), b"x")
        store(truth, A, B, C)
        set_ledger(truth, A, B, last=0, version=1)
        truth.wiped(C)
        if is_recorded:
            record_disks(truth, C)
        set_ledger(truth, A, C, last=0, version=2)
        assert [violation.rule for violation in truth.violations] == (["I17"] if is_recorded else [])

    for is_recorded in (False, True):
        on_virtual_time(lambda truth, is_recorded=is_recorded: history(truth, is_recorded=is_recorded))  # type: ignore[misc]


def test_new_disks_may_deny_entries_that_metadata_does_not_expect_on_them() -> None:
    async def history(truth: Truth, *, is_moved: bool) -> None:
        set_ledger(truth, A, B, C, last=None, version=0)
        truth.offered(LEDGER, EntryId(0), b"x")
        store(truth, A, B, C)
        truth.wiped(B)
        if is_moved:
            set_ledger(truth, A, C, B, last=None, version=1)
        truth.answered(B, LEDGER, frozenset(), [EntryResult(EntryId(0), Status.NO_ENTRY)], is_fencing=False)
        assert [violation.rule for violation in truth.violations] == ([] if is_moved else ["I13"])

    for is_moved in (False, True):
        on_virtual_time(lambda truth, is_moved=is_moved: history(truth, is_moved=is_moved))  # type: ignore[misc]


def test_new_disks_may_deny_entries_deleted_before_the_disks_were_added() -> None:
    async def history(truth: Truth, *, is_deleted: bool) -> None:
        set_ledger(truth, A, B, C, last=None, version=0)
        truth.offered(LEDGER, EntryId(0), b"x")
        store(truth, A, B, C)
        if is_deleted:
            truth.changed(1, f"{ROOT}/00/0000/L0000", b"", None, None)
        truth.wiped(B)
        truth.answered(B, LEDGER, frozenset(), [EntryResult(EntryId(0), Status.NO_LEDGER)], is_fencing=False)
        assert [violation.rule for violation in truth.violations] == ([] if is_deleted else ["I13"])

    for is_deleted in (False, True):
        on_virtual_time(lambda truth, is_deleted=is_deleted: history(truth, is_deleted=is_deleted))  # type: ignore[misc]


def test_beyond_the_quorums_existing_ledgers_and_later_ones_on_lost_disks_are_doomed() -> None:
    async def history(truth: Truth) -> None:
        set_ledger(truth, A, B, last=None, version=0)
        truth.wiped(A)
        truth.doom()
        assert truth.of(LEDGER).is_loss_expected

    async def later(truth: Truth) -> None:
        truth.wiped(C)
        truth.doom()
        set_ledger(truth, A, B, last=None, version=0)
        assert not truth.of(LEDGER).is_loss_expected
        set_ledger(truth, A, C, last=None, version=1)
        assert truth.of(LEDGER).is_loss_expected

    on_virtual_time(history)
    on_virtual_time(later)


def test_only_accepted_entries_without_any_copy_may_be_missing_on_a_new_member() -> None:
    async def history(truth: Truth, *, accepted: int, is_held: bool) -> None:
        set_ledger(truth, A, B, last=None, version=0)
        truth.offered(LEDGER, EntryId(0), b"x")
        store(truth, A, B)
        set_ledger(truth, A, B, last=0, version=1)
        truth.destroy(A)
        if not is_held:
            truth.destroy(B)
        entries = (RunGroup(accepted, accepted, 1, 0),)
        lost = LostFragment(EntryId(0), EntryId(9), (0,), (A,), entries=entries, shared=(0,))
        decision = Decision(LEDGER, DecisionKind.LOSS_ACCEPTED, "operator", 1, "destroyed", lost=(lost,))
        record = encode_record(decision, without=["ledger_id"])
        truth.changed(1, f"{own_path('decisions', ROOT)}/{LEDGER}", None, record, 0)
        set_ledger(truth, C, B, last=0, version=2)
        is_permitted = accepted == 0 and not is_held
        assert [violation.rule for violation in truth.violations] == ([] if is_permitted else ["I17"])

    for accepted, is_held in product((0, 1), (False, True)):
        on_virtual_time(lambda truth, a=accepted, h=is_held: history(truth, accepted=a, is_held=h))  # type: ignore[misc]


def set_lock(truth: Truth, who: str, *, is_there: bool) -> None:
    session = {"b": 2, "worker0": 3, "?": 0}[who]
    truth.roles.update({2: "b", 3: "worker0"})
    before, after = (None, b"") if is_there else (b"", None)
    truth.changed(session, lock_path(ROOT, LEDGER), before, after, None)


def test_a_collector_may_delete_an_empty_ledger_and_apaches_also_one_whose_lock_it_lost() -> None:
    async def history(truth: Truth, *, last: int, is_apache: bool, unlocked_by: str) -> None:
        set_ledger(truth, A, C, last=last, version=0)
        set_lock(truth, "b", is_there=True)
        set_lock(truth, unlocked_by, is_there=False)
        store(truth, B)
        set_ledger(truth, A, B, last=last, version=1)
        before = truth.begins_to_collect(B, LEDGER)
        truth.collected(B, LEDGER, before, is_collected=True, is_apache=is_apache)
        rules = [violation.rule for violation in truth.violations]
        is_unlocked_apache = is_apache and unlocked_by == "?"
        assert rules == ([] if last < 0 or is_unlocked_apache else ["I16"])
        assert truth.of(LEDGER).is_loss_expected == (last == 0 and is_unlocked_apache)

    for last, is_apache, unlocked_by in product((-1, 0), (True, False), ("?", "worker0")):
        on_virtual_time(partial(history, last=last, is_apache=is_apache, unlocked_by=unlocked_by))
