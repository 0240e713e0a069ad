"""The damaged copies that one turn finds: what is reported, overwritten, tried first and refused."""

from __future__ import annotations

from bookie.metadata.ledgers.ledgers import Versioned
from bookie.model.availability import EntryRuns
from bookie.model.ids import BookieId, EntryId
from bookie.wire.port import Status
from replicator.copying.outcome import CopyOutcome
from replicator.knowledge.damage import KnownDamage
from replicator.knowledge.evidence import BookieAnswer, CorruptCopy, UnreadableEntry
from replicator.knowledge.holdings import Shortfall
from replicator.knowledge.stored_again import STORED_AGAIN_MAX, RestoredCopyCounts
from replicator.plan.installable import CopiedStep
from replicator.plan.steps import Cause, CopyPosition, PositionKey
from replicator.repair.turn_damage import TurnDamage
from tests.worlds.ledgers import LEDGER, make_metadata, names
from tests.worlds.repair import Recorder

METADATA = make_metadata((0, "a b c"), quorum=(3, 2), last=9)
LEDGER_READ = Versioned(LEDGER, METADATA, 0)
A, B, T = names("a b t")
AT_B = PositionKey(EntryId(0), 1, B)
NOTHING = Shortfall()


def copy_of_b(target: BookieId = B) -> CopyPosition:
    return CopyPosition(
        fragment_index=0,
        position=1,
        old=B,
        target=target,
        cause=Cause.DAMAGED,
        first=EntryId(0),
        last=EntryId(9),
        write_quorum=3,
        sources=METADATA.fragments[0].members,
    )


def shown(*entry_ids: int) -> Shortfall:
    """Return the answer of b that it cannot read these entries."""
    return Shortfall(unread=((B, EntryRuns.of(map(EntryId, entry_ids))),))


class Turns:
    """The turns of one process."""

    def __init__(self) -> None:
        self.known = KnownDamage()
        self.stored_again = RestoredCopyCounts()
        self.recorder = Recorder()

    def turn(self) -> TurnDamage:
        return TurnDamage(self.known, self.stored_again, self.recorder)

    def reported(self) -> list[tuple[BookieId, EntryId]]:
        return [(copy.bookie, copy.entry_id) for copy in self.recorder.corrupt]


def test_what_a_bookie_showed_is_overwritten_in_this_round_only_and_reported_once() -> None:
    turns = Turns()
    damage = turns.turn()
    assert not damage.note_shown(LEDGER_READ, shown(2, 5))
    assert damage.entries(LEDGER_READ, AT_B) == {2, 5}
    assert not damage.is_any_known(LEDGER), "it is not known whether another bookie has a good copy"
    assert not damage.note_shown(LEDGER_READ, shown(5))
    assert damage.entries(LEDGER_READ, AT_B) == {5}
    assert sorted(turns.reported()) == [(B, 2), (B, 5)]


def test_what_a_copy_read_is_kept_for_later_turns_if_another_bookie_has_a_good_copy() -> None:
    turns = Turns()
    damaged, lost = CorruptCopy(B, EntryId(3), ""), CorruptCopy(B, EntryId(4), "")
    without = UnreadableEntry(EntryId(4), (BookieAnswer(A, Status.NO_ENTRY), BookieAnswer(B, Status.CORRUPT)))
    outcome = CopyOutcome(corrupt=(damaged, lost), unreadable=(without,), unreadable_count=1)
    assert not turns.turn().note_read(LEDGER_READ, [outcome])
    later = turns.turn()
    assert later.is_any_known(LEDGER)
    assert later.entries(LEDGER_READ, AT_B) == {3}
    assert turns.reported() == [(B, 3), (B, 4)]


def test_the_last_of_several_damaged_copies_is_tried_first_and_only_once() -> None:
    damage = Turns().turn()
    damage.note_shown(LEDGER_READ, shown(2, 5, 7))
    assert damage.to_try_first(LEDGER_READ, [copy_of_b()]) == [(copy_of_b(), 7)]
    assert not damage.to_try_first(LEDGER_READ, [copy_of_b(T)]), "another bookie replaces it"
    damage.note_tried(B)
    assert not damage.to_try_first(LEDGER_READ, [copy_of_b()])


def test_a_single_damaged_copy_needs_no_trial() -> None:
    damage = Turns().turn()
    damage.note_shown(LEDGER_READ, shown(7))
    assert not damage.to_try_first(LEDGER_READ, [copy_of_b()])


def test_an_installed_copy_ends_the_evidence_that_it_has_overwritten() -> None:
    damage = Turns().turn()
    damage.note_shown(LEDGER_READ, shown(2, 5))
    assert damage.note_installed(LEDGER_READ, CopiedStep(copy_of_b(), overwritten=(EntryId(2),))) == 1
    assert damage.entries(LEDGER_READ, AT_B) == {5}, "found after the copy began"
    assert damage.note_installed(LEDGER_READ, CopiedStep(copy_of_b(T))) == 1, "another bookie has the position"
    assert not damage.entries(LEDGER_READ, AT_B)


def test_a_bookie_whose_copies_are_damaged_again_and_again_is_refused() -> None:
    turns = Turns()
    for _ in range(STORED_AGAIN_MAX):
        damage = turns.turn()
        assert not damage.note_shown(LEDGER_READ, shown(2))
        damage.note_installed(LEDGER_READ, CopiedStep(copy_of_b(), overwritten=(EntryId(2),)))
        assert not damage.note_shown(LEDGER_READ, shown(3)), "this turn has stored copies there"
    assert not turns.turn().note_shown(LEDGER_READ, NOTHING)
    [refusal] = turns.turn().note_shown(LEDGER_READ, shown(2))
    assert (refusal.bookie, refusal.status) == (B, Status.IO_ERROR)


def test_an_entry_that_its_own_bookie_could_not_read_is_not_denied_by_all() -> None:
    damage = Turns().turn()
    damage.note_shown(LEDGER_READ, shown(2))
    denied = [UnreadableEntry(EntryId(each), (BookieAnswer(A, Status.NO_ENTRY),)) for each in (2, 3)]
    outcome = CopyOutcome(unreadable=tuple(denied), unreadable_count=2)
    found = damage.with_own_evidence(copy_of_b(), outcome).unreadable
    assert [entry.proves_loss(METADATA.digest_type) for entry in found] == [False, True]
    assert damage.with_own_evidence(copy_of_b(T), outcome) == outcome
