"""Severity compared with a twin that checks every entry and follows the wording of the definitions."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.model.severity import Severity, fragment_health


@dataclass(frozen=True)
class Case:
    members: tuple[int, ...]
    lost: frozenset[int]
    write_quorum: int
    ack_quorum: int
    first: int
    last: int | None

    @property
    def is_live(self) -> tuple[bool, ...]:
        return tuple(member not in self.lost for member in self.members)

    @property
    def arguments(self) -> tuple[tuple[bool, ...], int, int, int, int | None]:
        return self.is_live, self.write_quorum, self.ack_quorum, self.first, self.last


@st.composite
def cases(draw: st.DrawFn) -> Case:
    ensemble_size = draw(st.integers(1, 7))
    write_quorum = draw(st.integers(1, ensemble_size))
    first = draw(st.integers(0, 20))
    members = st.integers(0, 6)
    return Case(
        members=tuple(
            draw(
                st.lists(members, min_size=ensemble_size, max_size=ensemble_size, unique=True)
                | st.lists(members, min_size=ensemble_size, max_size=ensemble_size)
            )
        ),
        lost=draw(st.frozensets(members)),
        write_quorum=write_quorum,
        ack_quorum=draw(st.integers(0, write_quorum)),
        first=first,
        last=draw(st.one_of(st.none(), st.integers(first - 1, first + 20))),
    )


def copies_per_entry(case: Case) -> list[int]:
    """Return the number of live bookies for each entry. If the end is unknown, count one round of entries."""
    size = len(case.members)
    last = case.first + size - 1 if case.last is None else case.last
    return [
        len({case.members[(entry_id + i) % size] for i in range(case.write_quorum)} - case.lost)
        for entry_id in range(case.first, last + 1)
    ]


def slow_severity(case: Case) -> Severity | None:
    copies = copies_per_entry(case)
    if all(case.is_live):
        return None
    if not copies or min(copies) == case.write_quorum:
        return Severity.METADATA_ONLY
    return {0: Severity.NO_LIVE_COPY, 1: Severity.CRITICAL}.get(
        min(copies), Severity.BELOW_ACK_QUORUM if min(copies) < case.ack_quorum else Severity.BELOW_WRITE_QUORUM
    )


@given(cases())
def test_the_severity_equals_that_of_an_entry_by_entry_check(case: Case) -> None:
    health = fragment_health(*case.arguments, members=case.members)
    assert health.copies_min == min(copies_per_entry(case), default=case.write_quorum)
    assert health.severity is slow_severity(case)
    assert health.missing_positions == tuple(p for p in range(len(case.is_live)) if not case.is_live[p])


@given(cases(), st.data())
def test_losing_one_more_bookie_never_improves_the_severity(case: Case, data: st.DataObject) -> None:
    worse = replace(case, lost=case.lost | {data.draw(st.sampled_from(case.members))})
    before = fragment_health(*case.arguments, members=case.members)
    after = fragment_health(*worse.arguments, members=case.members)
    assert after.copies_min <= before.copies_min
    assert _rank(after.severity) <= _rank(before.severity)


def _rank(severity: Severity | None) -> int:
    return len(Severity) if severity is None else severity


@pytest.mark.parametrize(
    ("is_live", "write_quorum", "ack_quorum", "first", "last", "severity", "copies_min"),
    [
        pytest.param((True,), 1, 1, 0, 9, None, 1, id="a healthy ledger with one copy"),
        pytest.param((False,), 1, 1, 0, 9, Severity.NO_LIVE_COPY, 0, id="its only bookie is lost"),
        pytest.param((False, True), 2, 2, 0, 9, Severity.CRITICAL, 1, id="one copy left of two"),
        pytest.param((False, True, True), 3, 3, 0, 9, Severity.BELOW_ACK_QUORUM, 2, id="two left, three acknowledge"),
        pytest.param((False, True, True), 3, 2, 0, 9, Severity.BELOW_WRITE_QUORUM, 2, id="two left, two acknowledge"),
        pytest.param((False, True, True), 2, 2, 1, 1, Severity.METADATA_ONLY, 2, id="the lost bookie stores nothing"),
        pytest.param((False, False), 2, 2, 5, 4, Severity.METADATA_ONLY, 2, id="an empty fragment names lost bookies"),
        pytest.param((False, True, True), 2, 2, 1, None, Severity.CRITICAL, 1, id="an open end may reach any bookie"),
        pytest.param((False, True, True, False), 2, 1, 0, 3, Severity.NO_LIVE_COPY, 0, id="two neighbours are lost"),
        pytest.param(
            (False, True, False, True), 2, 1, 0, 3, Severity.CRITICAL, 1, id="two that share no entry are lost"
        ),
    ],
)
def test_each_case_has_its_severity(
    is_live: tuple[bool, ...],
    write_quorum: int,
    ack_quorum: int,
    first: int,
    last: int | None,
    severity: Severity | None,
    copies_min: int,
) -> None:
    health = fragment_health(is_live, write_quorum, ack_quorum, first, last)
    assert (health.severity, health.copies_min) == (severity, copies_min)


@pytest.mark.parametrize(
    ("members", "draining", "severity", "copies_min"),
    [
        pytest.param("aax", "", Severity.CRITICAL, 1, id="two copies on one bookie are one"),
        pytest.param("aab", "b", Severity.DRAIN, 2, id="a drain loses nothing"),
        pytest.param("aab", "", None, 2, id="a fault of the metadata, not of the bookies"),
    ],
)
def test_a_bookie_named_twice_has_one_copy(
    members: str, draining: str, severity: Severity | None, copies_min: int
) -> None:
    is_live, leaving = [member != "x" for member in members], [member in draining for member in members]
    health = fragment_health(is_live, 3, 2, 0, 9, leaving, members=members)
    assert (health.severity, health.copies_min) == (severity, copies_min)


def test_levels_are_ordered_worst_first() -> None:
    assert sorted(Severity) == [
        Severity.LOST,
        Severity.NO_LIVE_COPY,
        Severity.CRITICAL,
        Severity.BELOW_ACK_QUORUM,
        Severity.BELOW_WRITE_QUORUM,
        Severity.METADATA_ONLY,
        Severity.MISPLACED,
        Severity.DRAIN,
    ]
