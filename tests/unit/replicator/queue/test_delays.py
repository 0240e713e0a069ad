"""The delay queue's arithmetic."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bookie.metadata.bookies.registration import Bookies
from bookie.model.ids import BookieId, EntryId, LedgerId
from replicator.plan.planner import PositionKey
from replicator.queue.delay import Delays
from tests.worlds.clocks import ManualClock

LEDGER = LedgerId(7)


def key(name: str) -> PositionKey:
    return PositionKey(EntryId(0), ord(name) - ord("a"), BookieId(name))


@given(st.lists(st.tuples(st.integers(0, 40), st.sets(st.sampled_from("abc"))), max_size=20))
def test_a_ledger_is_due_once_one_position_was_missing_in_every_look_for_the_whole_period(
    looks: list[tuple[int, set[str]]],
) -> None:
    clock = ManualClock(100.0)
    delays = Delays(clock, 30.0)
    since: dict[str, float] = {}
    for pause_s, missing in looks:
        clock.now_s += pause_s
        since = {name: since.get(name, clock.now_s) for name in missing}
        delays.observe(LEDGER, map(key, sorted(missing)))
        if since:
            assert delays.due_in_s(LEDGER) == min(since.values()) + 30.0 - clock.now_s


def test_a_listing_does_not_forget_what_only_a_closer_look_shows() -> None:
    clock = ManualClock(100.0)
    delays = Delays(clock, 30.0)
    assert delays.remaining_s(LEDGER, [], [key("b")]) == 30.0
    clock.now_s += 20
    delays.observe(LEDGER, [])
    assert delays.remaining_s(LEDGER, [key("a")], [key("b")]) == 10.0
    assert delays.remaining_s(LEDGER, [key("a")], []) == 30.0


def test_what_has_no_task_any_more_is_forgotten() -> None:
    clock = ManualClock(100.0)
    delays = Delays(clock, 30.0)
    delays.observe(LEDGER, [key("b")])
    clock.now_s += 20
    delays.keep_only([])
    assert delays.remaining_s(LEDGER, [key("b")], []) == 30.0


def test_a_recovery_that_failed_is_worth_another_try_when_a_bookie_comes() -> None:
    delays = Delays(ManualClock(), 30.0)
    a, b = BookieId("a"), BookieId("b")
    few, more = Bookies(frozenset({a}), frozenset()), Bookies(frozenset({a}), frozenset({b}))
    assert not delays.has_new_bookie(LEDGER, more)
    delays.recovery_failed(LEDGER, few)
    assert not delays.has_new_bookie(LEDGER, few)
    assert delays.has_new_bookie(LEDGER, more)
    delays.recovery_failed(LEDGER, more)
    assert not delays.has_new_bookie(LEDGER, few)
