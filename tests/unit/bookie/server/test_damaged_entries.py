"""Known damage: what lists omit because of it, and what clears it."""

from __future__ import annotations

from bookie.model.availability import EntryRuns
from bookie.model.ids import EntryId, LedgerId
from bookie.server.damaged_entries import DamagedEntries
from bookie.wire.port import EntryResult, ListReply, Status
from tests.worlds.entries import raw_entry

L1, L2 = LedgerId(1), LedgerId(2)
TEN = ListReply(Status.OK, EntryRuns.of(range(10)))


def corrupt(*entry_ids: int) -> list[EntryResult]:
    return [EntryResult(EntryId(entry_id), Status.CORRUPT) for entry_id in entry_ids]


def noted(*entry_ids: int) -> DamagedEntries:
    board = DamagedEntries()
    with board.reading(L1) as stored:
        board.read(L1, corrupt(*entry_ids), stored)
    return board


def test_damaged_entries_are_left_out_only_from_the_list_of_their_ledger() -> None:
    board = noted(3, 4, 8)
    reply = board.without_damaged_entries(L1, TEN)
    assert (reply.status, list(reply.entries)) == (Status.CORRUPT, [0, 1, 2, 5, 6, 7, 9])
    assert reply.detail == "3 damaged: 3-4, 8"
    assert board.without_damaged_entries(L2, TEN) is TEN
    assert (board.count, board.ledgers(2)) == (3, [(L1, [3, 4])])


def test_a_list_in_limbo_stays_in_limbo_and_a_failed_one_is_not_touched() -> None:
    board = noted(3)
    reply = board.without_damaged_entries(L1, ListReply(Status.LIMBO, TEN.entries))
    assert (reply.status, 3 in reply.entries) == (Status.LIMBO, False)
    failed = ListReply(Status.IO_ERROR)
    assert board.without_damaged_entries(L1, failed) is failed
    assert board.count == 1


def test_an_entry_that_is_stored_or_read_again_is_no_longer_damaged() -> None:
    board = noted(3, 4)
    board.stored(L1, [raw_entry(L1, 3)])
    assert board.ledgers(10) == [(L1, [4])]
    with board.reading(L1) as stored:
        board.read(L1, [EntryResult(EntryId(4), Status.OK, b"")], stored)
    assert (board.count, board.without_damaged_entries(L1, TEN)) == (0, TEN)


def test_records_of_deleted_entries_are_removed() -> None:
    board = noted(3)
    gone = ListReply(Status.NO_LEDGER)
    assert board.without_damaged_entries(L1, gone) is gone
    assert board.count == 0


def test_a_read_that_began_before_an_add_records_no_damage_of_the_added_entry() -> None:
    board = DamagedEntries()
    with board.reading(L1) as stored:
        board.stored(L1, [raw_entry(L1, 3)])
        board.read(L1, corrupt(3, 4), stored)
    assert board.ledgers(10) == [(L1, [4])]
    with board.reading(L1) as stored:
        board.read(L1, corrupt(3), stored)  # the damage is found in this moment
    assert board.ledgers(10) == [(L1, [3, 4])]


def test_a_read_records_damage_of_an_entry_that_was_added_before_it_while_other_reads_ran() -> None:
    board = DamagedEntries()
    with board.reading(L1):
        board.stored(L1, [raw_entry(L1, 3)])
        with board.reading(L1) as stored:
            board.stored(L1, [raw_entry(L1, 4)])
            board.read(L1, corrupt(3, 4), stored)
    assert board.ledgers(10) == [(L1, [3])]


def test_the_number_of_damage_records_is_bounded() -> None:
    board = DamagedEntries(entries_max=2)
    with board.reading(L1) as stored:
        board.read(L1, corrupt(1, 2, 3), stored)
    assert (board.count, board.ledgers(10)) == (2, [(L1, [1, 2])])
