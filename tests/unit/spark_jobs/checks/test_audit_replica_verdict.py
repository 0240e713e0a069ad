"""The verdict of the replicas check, compared with a simple loop over every entry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.model.availability import EntryRuns, RunGroup
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import Fragment, LedgerMetadata
from bookie.model.schedule import Stripe
from bookie.model.severity import Severity
from spark_jobs.checks.replicas.expected import settled_metadata
from spark_jobs.checks.replicas.verdict import NOT_REGISTERED, Holdings, findings

LEDGER = LedgerId(7)
BOOKIES = [BookieId(f"{name}:1") for name in "abcdef"]


@st.composite
def ledgers(draw: st.DrawFn) -> LedgerMetadata:
    size = draw(st.integers(1, 4))
    write_quorum = draw(st.integers(1, size))
    ack_quorum = draw(st.integers(1, write_quorum))
    starts = sorted(draw(st.sets(st.integers(0, 20), min_size=1, max_size=4)))
    members = st.permutations(BOOKIES).map(lambda bookies: bookies[:size])
    members |= st.lists(st.sampled_from(BOOKIES), min_size=size, max_size=size)  # a bookie may be a member twice
    fragments = tuple(Fragment(EntryId(first), tuple(draw(members))) for first in starts)
    metadata = LedgerMetadata(size, write_quorum, ack_quorum, fragments)
    if draw(st.booleans()):
        return metadata
    last = draw(st.integers(-1, 30))
    return metadata.closed(EntryId(last), 10 * (last + 1))


@st.composite
def periodic(draw: st.DrawFn) -> set[int]:
    """Entries as a bookie of a striped ledger holds them; up to two are added or removed."""
    period, size, shift = draw(st.integers(1, 8)), draw(st.integers(1, 8)), draw(st.integers(0, 7))
    held = {entry for entry in range(draw(st.integers(0, 31))) if (entry + shift) % period < size}
    return held ^ draw(st.sets(st.integers(0, 31), max_size=2))


@st.composite
def answers(draw: st.DrawFn) -> Holdings:
    if draw(st.integers(0, 4)) == 0:
        return NOT_REGISTERED
    held = EntryRuns.of(sorted(draw(st.sets(st.integers(0, 31), max_size=32) | periodic())))
    return Holdings(held, draw(st.integers(0, 3)) > 0)


@given(ledgers(), st.fixed_dictionaries({bookie: answers() for bookie in BOOKIES}))
def test_the_verdict_equals_that_of_an_entry_by_entry_check(
    metadata: LedgerMetadata, holdings: Mapping[BookieId, Holdings]
) -> None:
    found = {
        finding.fragment.index: (
            finding.positions,
            finding.missing,
            finding.copies_min,
            finding.severity,
            finding.absent,
            [int(text.rpartition(" ")[2]) for text in finding.detail.split("; ")],
        )
        for finding in findings(settled_metadata(LEDGER, metadata), holdings)
    }
    assert found == expected(metadata, holdings)


def expected(
    metadata: LedgerMetadata, holdings: Mapping[BookieId, Holdings]
) -> dict[int, tuple[tuple[int, ...], tuple[BookieId, ...], int, Severity, int, list[int]]]:
    found = {}
    count = len(metadata.fragments)
    for index in range(count if metadata.is_closed else count - 2):
        fragment = metadata.fragments[index]
        last = metadata.fragment_last_entry_id(index)
        assert last is not None
        if metadata.last_entry_id is not None:
            last = min(last, metadata.last_entry_id)
        firsts: dict[int, int] = {}
        absent = 0
        worst: list[tuple[Severity, int]] = []
        for entry in range(fragment.first_entry_id, last + 1):
            where = metadata.stripe.write_set(entry)
            reported = [holdings[fragment.members[position]] for position in where]
            denied = [
                position
                for position, each in zip(where, reported, strict=True)
                if each.is_sure and entry not in each.entries
            ]
            if denied:
                firsts = dict.fromkeys(denied, entry) | firsts
                absent += len(denied)
                copies = len(
                    {
                        fragment.members[position]
                        for position, each in zip(where, reported, strict=True)
                        if position not in denied and each.is_registered
                    }
                )
                worst.append((level(copies, len(denied), metadata), copies))
        if worst:
            severity, copies = min(worst)
            ordered = tuple(sorted(firsts))
            missing = tuple(dict.fromkeys(fragment.members[position] for position in ordered))
            found[index] = (ordered, missing, copies, severity, absent, [firsts[position] for position in ordered])
    return found


def level(copies: int, denied: int, metadata: LedgerMetadata) -> Severity:
    if denied == metadata.write_quorum:
        return Severity.LOST
    if copies == 0:
        return Severity.NO_LIVE_COPY
    if copies == 1:
        return Severity.CRITICAL
    return Severity.BELOW_ACK_QUORUM if copies < metadata.ack_quorum else Severity.BELOW_WRITE_QUORUM


def closed(*members: BookieId, last: int) -> LedgerMetadata:
    return LedgerMetadata(len(members), 2, 2, (Fragment(EntryId(0), members),)).closed(EntryId(last), 100 * (last + 1))


def test_a_huge_ledger_is_checked_by_runs_of_entries() -> None:
    a, b, _, *_ = BOOKIES
    last = (1 << 62) - 1
    held = {a: Holdings(EntryRuns(((0, last),)), is_sure=True), b: Holdings(EntryRuns(((0, 9),)), is_sure=True)}
    (found,) = findings(settled_metadata(LEDGER, closed(a, b, last=last)), held)
    assert (found.missing, found.severity, found.absent) == ((b,), Severity.CRITICAL, last - 9)
    assert found.detail == f"b:1 lacks {last - 9} of {last + 1} entries, the first is 10"


@pytest.mark.parametrize(
    ("lost", "absent"),
    [
        (EntryRuns(((0, 29_999),)), 20_000),
        (EntryRuns.of(entry for entry in range(30_000) if entry % 6 in (0, 5)), 10_000),
        (EntryRuns.of([15_000]), 1),
    ],
    ids=["everything", "every second run", "one entry"],
)
def test_the_cost_of_a_striped_ledger_does_not_grow_with_its_entries(
    monkeypatch: pytest.MonkeyPatch, lost: EntryRuns, absent: int
) -> None:
    steps, real = 0, RunGroup.runs

    def counted(group: RunGroup) -> Iterator[tuple[int, int]]:
        nonlocal steps
        for run in real(group):
            steps += 1
            yield run

    a, b, c, *_ = BOOKIES
    held = {each: Stripe(3, 2).runs(position, 0, 29_999) for position, each in enumerate((a, b, c))}
    held[a] = EntryRuns.of(entry for first, last in held[a].without(lost).runs for entry in range(first, last + 1))
    ledger = settled_metadata(LEDGER, closed(a, b, c, last=29_999))
    monkeypatch.setattr(RunGroup, "runs", counted)
    (found,) = findings(ledger, {bookie: Holdings(entries, is_sure=True) for bookie, entries in held.items()})
    assert (found.missing, found.severity, found.absent) == ((a,), Severity.CRITICAL, absent)
    assert steps < 50


@pytest.mark.parametrize(("length", "size"), [(8 * 10**18, (1 << 63) - 1), (-8 * 10**18, 0)])
def test_a_damaged_length_gives_a_size_that_fits_into_a_table(length: int, size: int) -> None:
    a, b, c, *_ = BOOKIES
    metadata = LedgerMetadata(3, 3, 2, (Fragment(EntryId(0), (a, b, c)),)).closed(EntryId(9), length)
    held = {each: Holdings(is_sure=True) for each in (a, b)}
    (found,) = findings(settled_metadata(LEDGER, metadata), held)
    assert (found.missing, found.bytes_estimate) == ((a, b), size)


def test_a_missing_answer_is_never_absence() -> None:
    a, b, *_ = BOOKIES
    ledger = settled_metadata(LEDGER, closed(a, b, last=9))
    nothing = EntryRuns(())
    assert not list(findings(ledger, {a: Holdings(nothing), b: Holdings(nothing)}))
    (found,) = findings(ledger, {a: Holdings(nothing, is_sure=True), b: Holdings(nothing)})
    assert (found.severity, found.missing) == (Severity.CRITICAL, (a,))
    (found,) = findings(ledger, {a: Holdings(nothing, is_sure=True)})
    assert found.severity is Severity.NO_LIVE_COPY, "b is not registered, but may return with its copy"
    (found,) = findings(ledger, {each: Holdings(nothing, is_sure=True) for each in (a, b)})
    assert (found.severity, found.copies_min, found.bytes_estimate) == (Severity.LOST, 0, 2000)


def test_a_bookie_that_is_named_twice_has_one_copy() -> None:
    a, b, *_ = BOOKIES
    metadata = LedgerMetadata(3, 3, 2, (Fragment(EntryId(0), (a, a, b)),)).closed(EntryId(9), 1000)
    ledger, everything = settled_metadata(LEDGER, metadata), EntryRuns(((0, 9),))
    nothing, damaged = Holdings(is_sure=True), Holdings(is_sure=True, is_damaged=True)
    for other in (Holdings(everything, is_sure=True), Holdings()):
        (found,) = findings(ledger, {a: other, b: nothing})
        assert (found.positions, found.copies_min, found.severity) == ((2,), 1, Severity.CRITICAL)
    (found,) = findings(ledger, {b: nothing})
    assert (found.copies_min, found.severity) == (0, Severity.NO_LIVE_COPY)
    (found,) = findings(ledger, {a: damaged, b: nothing})
    assert (found.copies_min, found.severity) == (0, Severity.NO_LIVE_COPY)
    (found,) = findings(ledger, {a: nothing, b: nothing})
    assert (found.positions, found.absent, found.severity) == ((0, 1, 2), 30, Severity.LOST)


def test_the_end_of_an_open_ledger_has_no_verdict() -> None:
    a, b, c, *_ = BOOKIES
    fragments = tuple(Fragment(EntryId(first), (a, b)) for first in (0, 10, 20))
    ledger = settled_metadata(LEDGER, LedgerMetadata(2, 2, 2, fragments))
    assert [(part.first, part.last) for part in ledger.fragments] == [(0, 9)]
    assert settled_metadata(LEDGER, LedgerMetadata(2, 2, 2, fragments[:2])).fragments == ()
    assert ledger.holders() == [a, b]
    assert ledger.expected(c) == 0
