"""The rules of docs/formats.md#field-rules and #metadata-rules, and lookups compared with loops over every fragment."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.model.ids import NO_ENTRY, BookieId, EntryId
from bookie.model.metadata import (
    DigestType,
    Fragment,
    InvalidMetadataError,
    LedgerMetadata,
    LedgerState,
)

A, B, C, D, X = map(BookieId, ("a:1", "b:1", "c:1", "d:1", "x:1"))


def fragment(first: int, *members: BookieId) -> Fragment:
    return Fragment(EntryId(first), members)


def metadata(*fragments: Fragment, **changes: Any) -> LedgerMetadata:
    """Return an open ledger, by default with E=3 Qw=2 Qa=2."""
    values: dict[str, Any] = {"ensemble_size": 3, "write_quorum": 2, "ack_quorum": 2}
    return LedgerMetadata(fragments=fragments or (fragment(0, A, B, C),), **{**values, **changes})


CLOSED: dict[str, Any] = {"state": LedgerState.CLOSED, "last_entry_id": EntryId(9), "length": 500}


@st.composite
def ledgers(draw: st.DrawFn) -> LedgerMetadata:
    firsts = sorted(draw(st.sets(st.integers(0, 60), min_size=1, max_size=6)))
    ledger = metadata(*(fragment(first, A, B, C) for first in firsts))
    if draw(st.booleans()):
        last = EntryId(firsts[-1] + draw(st.integers(-1, 20)))
        return ledger.closed(last, length=100)
    return ledger


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"ensemble_size": 1, "write_quorum": 2}, "need E >= Qw >= Qa"),
        ({"write_quorum": 1, "ack_quorum": 2}, "need E >= Qw >= Qa"),
        ({"ack_quorum": -1}, "need E >= Qw >= Qa"),
        ({"write_quorum": 0, "ack_quorum": 0}, "Qw >= 1"),
        ({"fragments": ()}, "no fragment"),
        ({"fragments": (fragment(0, A, B),)}, "has 2 members, E=3"),
        ({"fragments": (fragment(-1, A, B, C),)}, "fragment -1"),
        ({"fragments": (fragment(5, A, B, C), fragment(5, A, B, D))}, "fragment 5 does not follow 5"),
        ({"fragments": (fragment(5, A, B, C), fragment(4, A, B, D))}, "fragment 4 does not follow 5"),
        ({"state": LedgerState.CLOSED}, "belong to closed ledgers"),
        ({"state": LedgerState.CLOSED, "last_entry_id": EntryId(3)}, "belong to closed ledgers"),
        ({"state": LedgerState.IN_RECOVERY, "length": 0}, "belong to closed ledgers"),
        ({"last_entry_id": NO_ENTRY}, "belong to closed ledgers"),
        ({"password": None}, "password and digest type"),
        ({"digest_type": None}, "password and digest type"),
    ],
)
def test_invalid_metadata_cannot_be_created(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidMetadataError, match=problem):
        replace(metadata(), **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"ack_quorum": 0},
        {"fragments": (fragment(7, A, B, C),)},  # the first entry is not 0
        {"fragments": (fragment(0, A, A, A),)},  # a member is repeated
        {"fragments": (fragment(0, A, B, C), fragment(10, A, B, D)), **CLOSED},  # the last fragment is empty
        {"password": None, "digest_type": None, "format_version": 1},
        {"state": LedgerState.CLOSED, "last_entry_id": NO_ENTRY, "length": 0},
    ],
)
def test_unusual_metadata_of_real_clusters_is_accepted(changes: dict[str, Any]) -> None:
    replace(metadata(), **changes)


@given(ledgers(), st.integers(0, 90))
def test_an_entry_is_in_the_last_fragment_that_starts_at_or_before_it(ledger: LedgerMetadata, entry: int) -> None:
    candidates = [index for index, part in enumerate(ledger.fragments) if part.first_entry_id <= entry]
    if candidates:
        assert ledger.fragment_index(EntryId(entry)) == max(candidates)
    else:
        with pytest.raises(InvalidMetadataError, match="before the first fragment"):
            ledger.fragment_index(EntryId(entry))


@given(ledgers())
def test_fragments_are_adjacent_without_gap_or_overlap(ledger: LedgerMetadata) -> None:
    lasts = [ledger.fragment_last_entry_id(index) for index in range(len(ledger.fragments))]
    for last, following in zip(lasts[:-1], ledger.fragments[1:], strict=True):
        assert last == following.first_entry_id - 1
    assert lasts[-1] == ledger.last_entry_id
    assert (lasts[-1] is None) is not ledger.is_closed


def test_the_end_of_a_fragment_is_final_if_no_writer_can_change_it() -> None:
    opened = metadata(fragment(0, A, B, C), fragment(4, A, B, D), fragment(7, A, B, X))
    assert final_ends(opened) == [3, None, None]
    assert final_ends(opened, is_tail_written=True) == [3, 6, None]
    assert final_ends(opened.closed(EntryId(9), 500)) == [3, 6, 9]
    assert final_ends(opened.closed(EntryId(5), 500)) == [3, 5, 5]
    assert final_ends(metadata(), is_tail_written=True) == final_ends(metadata()) == [None]


def final_ends(ledger: LedgerMetadata, *, is_tail_written: bool = False) -> list[int | None]:
    numbers = range(len(ledger.fragments))
    return [ledger.final_last_entry_id(index, is_tail_written=is_tail_written) for index in numbers]


def test_closing_sets_end_and_length_and_keeps_everything_else() -> None:
    opened = metadata(custom=(("app", b"x"),), ctime_ms=5, format_version=2)
    sealed = opened.closed(EntryId(9), 500)
    assert sealed == replace(opened, **CLOSED)
    assert sealed.is_closed
    assert not opened.is_closed


def test_a_new_last_fragment_is_appended_after_one_with_entries() -> None:
    changed = metadata().with_last_fragment(EntryId(4), (A, X, C))
    assert changed.fragments == (fragment(0, A, B, C), fragment(4, A, X, C))
    assert changed.last_fragment == fragment(4, A, X, C)


def test_a_new_last_fragment_takes_the_place_of_an_empty_one() -> None:
    changed = metadata(fragment(0, A, B, C), fragment(4, A, B, D)).with_last_fragment(EntryId(4), (A, X, D))
    assert changed.fragments == (fragment(0, A, B, C), fragment(4, A, X, D))


def test_a_new_last_fragment_never_shortens_the_ledger() -> None:
    with pytest.raises(InvalidMetadataError):
        metadata(fragment(0, A, B, C), fragment(4, A, B, D)).with_last_fragment(EntryId(3), (A, X, D))


def test_a_replacement_keeps_the_position_and_all_other_fragments() -> None:
    ledger = metadata(fragment(0, A, B, C), fragment(4, A, B, D), **CLOSED)
    changed = ledger.with_members({0: (A, X, C)})
    assert changed.fragments == (fragment(0, A, X, C), fragment(4, A, B, D))
    assert replace(changed, fragments=ledger.fragments) == ledger


@pytest.mark.parametrize(("index", "members"), [(0, (A, B, C, X)), (0, (A, X)), (-1, (A, X, C)), (9, (A, X, C))])
def test_a_replacement_outside_the_ensemble_is_refused(index: int, members: tuple[BookieId, ...]) -> None:
    with pytest.raises(InvalidMetadataError):
        metadata().with_members({index: members})


def test_members_include_those_of_every_fragment() -> None:
    assert metadata(fragment(0, A, B, C), fragment(4, A, B, D)).members() == {A, B, C, D}


def test_custom_metadata_is_offered_as_a_mapping() -> None:
    assert metadata(custom=(("a", b"1"), ("b", b"2"))).custom_map == {"a": b"1", "b": b"2"}


def test_the_password_is_never_printed() -> None:
    assert "hunter2" not in repr(metadata(password=b"hunter2"))


def test_only_a_closed_ledger_whose_last_entry_is_minus_one_is_empty() -> None:
    assert metadata().closed(NO_ENTRY, 0).is_empty
    assert not metadata().closed(EntryId(0), 1).is_empty
    assert not metadata().is_empty


def test_enum_values_are_those_of_the_wire_format() -> None:
    assert {state.name: state.value for state in LedgerState} == {"OPEN": 1, "IN_RECOVERY": 2, "CLOSED": 3}
    assert {kind.name: kind.value for kind in DigestType} == {"CRC32": 1, "HMAC": 2, "CRC32C": 3, "DUMMY": 4}
