"""The delay queue's arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from bookie.metadata.bookies.registration import Bookies
from bookie.model.ids import BookieId, EntryId, LedgerId
from replicator.plan.planner import PositionKey
from replicator.queue.delay import Delays

LEDGER = LedgerId(7)


@dataclass
class Clock:
    now_s: float = 100.0

    def monotonic_s(self) -> float:
        return self.now_s

    def epoch_ms(self) -> int:
        return int(self.now_s * 1000)

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def key(name: str) -> PositionKey:
    return PositionKey(EntryId(0), ord(name) - ord("a"), BookieId(name))


@given(st.lists(st.tuples(st.integers(0, 40), st.sets(st.sampled_from("abc"))), max_size=20))
def test_a_ledger_is_due_once_one_position_was_missing_in_every_look_for_the_whole_period(
    looks: list[tuple[int, set[str]]],
) -> None:
    clock = Clock()
    delays = Delays(clock, 30.0)
    since: dict[str, float] = {}
    for pause_s, missing in looks:
        clock.now_s += pause_s
        since = {name: since.get(name, clock.now_s) for name in missing}
        delays.observe(LEDGER, map(key, sorted(missing)))
        if since:
            assert delays.due_in_s(LEDGER) == min(since.values()) + 30.0 - clock.now_s


def test_a_listing_does_not_forget_what_only_a_closer_look_shows() -> None:
    clock = Clock()
    delays = Delays(clock, 30.0)
    assert delays.remaining_s(LEDGER, [], [key("b")]) == 30.0
    clock.now_s += 20
    delays.observe(LEDGER, [])
    assert delays.remaining_s(LEDGER, [key("a")], [key("b")]) == 10.0
    assert delays.remaining_s(LEDGER, [key("a")], []) == 30.0


def test_what_has_no_task_any_more_is_forgotten() -> None:
    clock = Clock()
    delays = Delays(clock, 30.0)
    delays.observe(LEDGER, [key("b")])
    clock.now_s += 20
    delays.keep_only([])
    assert delays.remaining_s(LEDGER, [key("b")], []) == 30.0


def test_a_recovery_that_failed_is_worth_another_try_when_a_bookie_comes() -> None:
    delays = Delays(Clock(), 30.0)
    a, b = BookieId("a"), BookieId("b")
    few, more = Bookies(frozenset({a}), frozenset()), Bookies(frozenset({a}), frozenset({b}))
    assert not delays.has_new_bookie(LEDGER, more)
    delays.recovery_failed(LEDGER, few)
    assert not delays.has_new_bookie(LEDGER, few)
    assert delays.has_new_bookie(LEDGER, more)
    delays.recovery_failed(LEDGER, more)
    assert not delays.has_new_bookie(LEDGER, few)
