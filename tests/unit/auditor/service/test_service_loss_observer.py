"""How long it took until losses were marked, measured by a process that neither leads nor writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from auditor.service.watch import loss_observer
from auditor.service.watch.loss_observer import GAP_S_MAX, MarkedBookies, ObservedLosses, judge
from bookie.metadata.bookies.first_seen_down import Down
from bookie.model.ids import BookieId

X, Y = BookieId("x:1"), BookieId("y:1")
T = 1_000_000_000
"""The time of the first observation, in epoch milliseconds."""


class Observer:
    """The observations of one process, ten seconds apart."""

    def __init__(self, *lost: BookieId) -> None:
        self.second = -10.0
        self.observed: ObservedLosses | None = None
        self.observe(*lost)

    @property
    def now_ms(self) -> int:
        return T + int(self.second * 1000)

    def observe(
        self,
        *lost: BookieId,
        noted: Mapping[BookieId, Down] | None = None,
        named: Mapping[str, int] | None = None,
        is_run: bool = False,
        is_counted: bool = True,
        after_s: float = 10,
    ) -> Sequence[float]:
        self.second += after_s
        marks = MarkedBookies(is_counted, named or {}, is_run)
        self.observed = judge(self.observed, frozenset(lost), noted or {}, marks, self.now_ms, self.second)
        return self.observed.detected_s

    def at(self, second: float) -> int:
        return T + int(second * 1000)


def test_a_loss_marked_by_apaches_auditor_is_measured_to_its_first_mark() -> None:
    observer = Observer()
    assert observer.observe(X) == ()
    assert observer.observe(X) == ()
    assert observer.observe(X, Y, named={X: observer.at(25)}) == (15,), "measured until the time of the mark"
    assert observer.observe(X, Y, named={X: observer.at(39), Y: 0}) == (10,), (
        "a mark without a time is dated by its observation"
    )
    assert observer.observe(X, Y, named={X: observer.at(49), Y: observer.at(49)}) == ()
    observer.observe(named={X: observer.at(49)})
    observer.observe(X, named={X: observer.at(49)})
    assert observer.observe(X, named={X: observer.at(75)}) == (5,), "this is another loss"


def test_the_wrong_clock_of_a_marking_machine_does_not_change_the_time() -> None:
    for wrong_s in (-7200, 7200):
        observer = Observer()
        observer.observe(X)
        assert observer.observe(X, named={X: observer.at(wrong_s)}) == (10,)


def test_a_mark_between_the_loss_and_the_first_observation_takes_no_time() -> None:
    assert Observer().observe(X, named={X: T + 5000}) == (0,)


def test_an_audit_of_bkheal_is_measured_by_its_records_and_once() -> None:
    observer = Observer()
    observer.observe(X)
    began_ms = observer.at(12)
    down = Down(began_ms)
    assert observer.observe(X, noted={X: down}, named={X: observer.at(19)}, is_run=True) == (), (
        "the run is still active"
    )
    assert observer.observe(X, noted={X: down}, named={X: observer.at(29)}, is_run=True) == ()
    audited = Down(began_ms, audited_ms=began_ms + 90_000)
    assert observer.observe(X, noted={X: audited}, named={X: observer.at(29)}) == (90,)
    assert observer.observe(X, noted={X: audited}, named={X: observer.at(49)}) == ()
    assert observer.observe(X, noted={X: Down(began_ms)}, named={X: observer.at(59)}) == (), (
        "a leader requested another audit"
    )
    assert observer.observe(X, noted={X: Down(began_ms, audited_ms=began_ms + 200_000)}) == ()


def test_an_audit_of_only_the_critical_ledgers_does_not_end_the_measurement() -> None:
    observer = Observer()
    observer.observe(X)
    down = Down(observer.at(10), critical_audited_ms=observer.at(15))
    assert observer.observe(X, noted={X: down}, named={X: observer.at(14)}) == ()
    down = Down(down.since_ms, down.since_ms + 600_000, critical_audited_ms=down.critical_audited_ms)
    assert observer.observe(X, noted={X: down}, named={X: observer.at(14)}) == (600,)


def test_marks_by_apaches_auditor_before_a_cron_job_are_counted_once() -> None:
    observer = Observer()
    observer.observe(X)
    assert observer.observe(X, named={X: observer.at(15)}) == (5,)
    down = Down(observer.at(3600))
    assert observer.observe(X, noted={X: down}, is_run=True) == ()
    assert observer.observe(X, noted={X: Down(down.since_ms, down.since_ms + 1)}) == ()


def test_marks_by_apaches_auditor_after_a_run_without_marks_are_measured_by_the_record() -> None:
    observer = Observer()
    observer.observe(X, Y)
    records = {X: Down(observer.at(10)), Y: Down(observer.at(10))}
    assert observer.observe(X, Y, noted=records, is_run=True) == ()
    assert observer.observe(X, Y, noted=records, named={X: observer.at(18), Y: observer.at(28)}) == (8, 18)
    assert observer.observe(X, Y, noted={X: Down(observer.at(10), observer.at(35)), Y: records[Y]}) == ()


def test_a_bookie_without_ledgers_is_never_measured() -> None:
    observer = Observer()
    for _ in range(1000):
        assert observer.observe(X) == ()


def test_a_bookie_that_returns_before_any_mark_is_not_measured() -> None:
    observer = Observer()
    observer.observe(X)
    observer.observe(named={X: T + 15_000})
    assert observer.observe(named={X: T + 15_000}) == ()
    assert observer.observed is not None
    assert not observer.observed.losses


def test_marks_from_before_the_loss_do_not_count() -> None:
    for old_ms in (T - 60_000, 0):
        observer = Observer()
        observer.observe(named={X: old_ms})
        for _ in range(3):
            assert observer.observe(X, named={X: old_ms}) == ()
        observer.observe(X)
        assert observer.observe(X, named={X: 0}) == (40,), "the old ledgers were repaired, so this mark is new"


def test_before_the_first_count_only_a_mark_with_a_time_counts_as_new() -> None:
    observer = Observer()
    observer.observe(is_counted=False)
    observer.observe(X, Y, is_counted=False)
    assert observer.observe(X, Y, named={X: observer.at(25), Y: 0}) == (5,)


@pytest.mark.parametrize("named", [{X: T - 60_000}, {X: T + 5_000}, {X: 0}, {}])
def test_after_a_restart_earlier_losses_are_not_reported_from_their_marks(named: Mapping[str, int]) -> None:
    observer = Observer(X)
    assert observer.observe(X, named=named) == ()
    assert observer.observe(X, named={X: observer.at(15)}) == ()
    assert observer.observe(X, noted={X: Down(T - 5000)}, named={X: observer.at(15)}) == ()


def test_after_a_restart_the_end_of_an_audit_is_reported_unless_it_had_already_ended() -> None:
    observer = Observer()
    observer.observed = None
    observer.observe(X, Y, noted={X: Down(T - 600_000), Y: Down(T - 600_000, T - 5000)})
    assert observer.observe(X, Y, noted={X: Down(T - 600_000, T), Y: Down(T - 600_000, T - 5000)}) == (600,)


def test_losses_that_start_during_a_gap_in_observation_are_not_measured() -> None:
    observer = Observer()
    observer.observe(X)
    assert observer.observe(X, Y, named={X: observer.at(50), Y: observer.at(50)}, after_s=GAP_S_MAX + 1) == ()
    assert observer.observe(X, Y, named={X: observer.at(50), Y: observer.at(50)}) == ()


def test_an_old_record_that_was_not_deleted_does_not_count_for_the_next_loss() -> None:
    old = {X: Down(T - 900_000, T - 800_000)}
    observer = Observer()
    observer.observe(noted=old)
    observer.observe(noted=old)
    assert observer.observe(X, noted=old) == ()
    assert observer.observe(X, noted=old, named={X: observer.at(35)}) == (5,)


def test_a_record_that_appears_while_registrations_are_read_counts_for_the_next_loss() -> None:
    observer = Observer()
    down = Down(observer.at(10))
    observer.observe(noted={X: down})
    assert observer.observe(X, noted={X: down}, is_run=True) == ()
    assert observer.observe(X, noted={X: Down(down.since_ms, down.since_ms + 20_000)}) == (20,)


def test_a_bookie_that_returned_between_two_observations_is_a_new_loss() -> None:
    observer = Observer()
    observer.observe(X)
    first = Down(observer.at(10), observer.at(15))
    assert observer.observe(X, noted={X: first}, named={X: observer.at(14)}) == (5,)
    second = Down(observer.at(25))
    assert observer.observe(X, noted={X: second}, named={X: observer.at(14)}) == (), (
        "the marks are those of the first loss"
    )
    assert observer.observe(X, noted={X: Down(second.since_ms, second.since_ms + 7000)}) == (7,)


def test_remembered_losses_are_bounded_and_known_ones_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_observer, "LOSSES_MAX", 1)
    observer = Observer()
    observer.observe(Y)
    observer.observe(X, Y)
    assert observer.observed is not None
    assert set(observer.observed.losses) == {Y}


@given(
    st.lists(
        st.tuples(st.booleans(), st.sampled_from(["", "old", "new"]), st.booleans(), st.sampled_from([0, 5, 10, 100])),
        max_size=12,
    )
)
def test_no_loss_is_reported_twice(steps: list[tuple[bool, str, bool, int]]) -> None:
    observer, reported, was_lost = Observer(), 0, False
    for is_lost, mark, is_run, audited_s in steps:
        reported = reported if is_lost and was_lost else 0
        was_lost = is_lost
        named: dict[str, int] = {} if not mark else {X: T - 5 if mark == "old" else observer.now_ms + 5}
        noted = {X: Down(T + 1, audited_s and T + 1 + audited_s * 1000)} if audited_s else {}
        found = observer.observe(*([X] if is_lost else []), noted=noted, named=named, is_run=is_run)
        reported += len(found)
        assert all(seconds >= 0 for seconds in found)
        assert reported <= 1
