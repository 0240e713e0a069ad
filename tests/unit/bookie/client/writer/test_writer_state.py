"""The state of the writer, step by step and against a slow, obvious twin."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bookie.client.writer.state import Lane, PendingAdd, WriterState
from bookie.model.ids import BookieId
from bookie.model.schedule import Stripe
from bookie.wire.port import BATCH_BYTES_MAX

MEMBERS = tuple(BookieId(f"b{i}:1") for i in range(5))


def state(ensemble: int = 3, write: int = 3, ack: int = 2) -> WriterState[int]:
    return WriterState(MEMBERS[:ensemble], write, ack)


def admit(writer: WriterState[int], count: int) -> list[PendingAdd[int]]:
    return [writer.admit(b"x" * 10, 10, index) for index in range(count)]


def ack_all(writer: WriterState[int], lane: Lane[int]) -> list[int]:
    return [pending.entry_id for pending in writer.acknowledge(lane, lane.take_batch())]


def test_entries_are_confirmed_in_order_after_the_ack_quorum() -> None:
    writer = state()
    admit(writer, 3)
    first, second = writer.lanes[0].take_batch(), writer.lanes[1].take_batch()
    assert writer.acknowledge(writer.lanes[0], first) == []
    assert [pending.entry_id for pending in writer.acknowledge(writer.lanes[1], second)] == [0, 1, 2]
    assert writer.last_add_confirmed == 2
    assert writer.confirmed_length == 30


def test_a_later_entry_waits_for_an_earlier_one() -> None:
    writer = state(3, 2, 2)
    admit(writer, 2)  # entry 0 on positions 0 and 1, entry 1 on 1 and 2
    assert ack_all(writer, writer.lanes[1]) == []
    assert ack_all(writer, writer.lanes[2]) == []
    assert ack_all(writer, writer.lanes[0]) == [0, 1]


def test_the_ack_of_a_replaced_bookie_does_not_count() -> None:
    writer = state()
    admit(writer, 1)
    old = writer.lanes[0]
    batch = old.take_batch()
    writer.fail(old)
    writer.replace((MEMBERS[3], MEMBERS[1], MEMBERS[2]))
    assert writer.acknowledge(old, batch) == []
    assert ack_all(writer, writer.lanes[1]) == []
    assert ack_all(writer, writer.lanes[0]) == [0]


def test_acks_of_a_position_are_void_once_its_bookie_is_replaced() -> None:
    writer = state()
    admit(writer, 2)
    lane = writer.lanes[0]
    writer.acknowledge(lane, lane.take_batch())
    admit(writer, 1)
    lane.take_batch()
    writer.fail(lane)
    writer.is_changing = True
    writer.replace((MEMBERS[4], MEMBERS[1], MEMBERS[2]))
    writer.is_changing = False
    assert ack_all(writer, writer.lanes[1]) == []  # would be confirmed if the replaced bookie's ack still counted
    assert [pending.entry_id for pending in writer.lanes[0].queue] == [0, 1, 2]


def test_acks_of_a_bookie_that_lost_its_disks_are_void() -> None:
    writer = state()
    admit(writer, 1)
    lane = writer.lanes[0]
    writer.acknowledge(lane, lane.take_batch())
    writer.fail(lane, is_wiped=True)
    assert ack_all(writer, writer.lanes[1]) == []
    assert ack_all(writer, writer.lanes[2]) == [0]


def test_nothing_is_confirmed_while_the_ensemble_changes() -> None:
    writer = state()
    admit(writer, 1)
    writer.is_changing = True
    assert ack_all(writer, writer.lanes[1]) == []
    assert ack_all(writer, writer.lanes[2]) == []
    writer.is_changing = False
    assert [pending.entry_id for pending in writer.confirm()] == [0]


def test_confirmed_entries_are_still_sent_to_the_slow_member() -> None:
    writer = state()
    admit(writer, 1)
    ack_all(writer, writer.lanes[0])
    ack_all(writer, writer.lanes[1])
    assert writer.unsettled_entries == 1
    ack_all(writer, writer.lanes[2])
    assert writer.is_drained
    assert writer.unsettled_bytes == 0


def test_a_member_dropped_before_it_had_a_confirmed_entry_is_listed_as_incomplete() -> None:
    writer = state()
    admit(writer, 1)
    ack_all(writer, writer.lanes[0])
    ack_all(writer, writer.lanes[1])
    writer.lanes[2].take_batch()
    writer.fail(writer.lanes[2])
    assert writer.incomplete == {MEMBERS[2]}
    assert writer.is_drained
    assert not writer.needs_change


def test_an_entry_confirmed_after_a_failure_makes_the_failed_member_incomplete() -> None:
    writer = state()
    admit(writer, 1)
    writer.lanes[2].take_batch()
    writer.fail(writer.lanes[2])
    assert writer.needs_change
    ack_all(writer, writer.lanes[0])
    ack_all(writer, writer.lanes[1])
    assert writer.is_drained
    assert writer.incomplete == {MEMBERS[2]}


def test_a_member_that_fails_during_a_change_stays_failed() -> None:
    writer = state()
    admit(writer, 1)
    writer.fail(writer.lanes[0])
    writer.is_changing = True
    writer.fail(writer.lanes[1])
    writer.replace((MEMBERS[3], MEMBERS[1], MEMBERS[2]))
    assert writer.failed_positions() == (1,)


def test_abandoning_returns_what_was_not_confirmed() -> None:
    writer = state()
    admit(writer, 3)
    ack_all(writer, writer.lanes[0])
    assert [pending.entry_id for pending in writer.abandon()] == [0, 1, 2]
    assert writer.is_drained
    assert writer.next_entry_id == 0


def test_a_batch_goes_beyond_its_size_by_less_than_an_entry() -> None:
    writer = state()
    for index in range(5):
        writer.admit(bytes(BATCH_BYTES_MAX // 2), 10, index)
    assert [len(writer.lanes[0].take_batch()) for _ in range(4)] == [2, 2, 1, 0]


@given(
    shape=st.sampled_from([(1, 1, 1), (3, 3, 2), (3, 2, 2), (5, 3, 2), (5, 5, 3)]),
    count=st.integers(1, 12),
    order=st.randoms(use_true_random=False),
)
def test_the_longest_prefix_with_enough_acks_is_confirmed(
    shape: tuple[int, int, int], count: int, order: object
) -> None:
    ensemble, write, ack = shape
    writer = state(*shape)
    admit(writer, count)
    acked: dict[int, set[int]] = {entry: set() for entry in range(count)}
    lanes = list(writer.lanes)
    order.shuffle(lanes)  # type: ignore[attr-defined]
    for lane in lanes:
        batch = lane.take_batch()
        if not batch:
            continue
        for pending in batch:
            assert lane.position in Stripe(ensemble, write).write_set(pending.entry_id)
            acked[pending.entry_id].add(lane.position)
        writer.acknowledge(lane, batch)
        prefix = 0
        while prefix < count and len(acked[prefix]) >= ack:
            prefix += 1
        assert writer.last_add_confirmed == prefix - 1
    assert writer.is_drained
