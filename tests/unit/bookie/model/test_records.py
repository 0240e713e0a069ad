"""Our own records: what is read back, what is refused, and how two releases treat each other's records."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.model.records import FORMAT, UnreadableRecordError, decode_record, encode_record


class Colour(enum.Enum):
    RED = "red"


@dataclass(frozen=True, slots=True)
class Record:
    name: str
    colour: Colour = Colour.RED
    members: frozenset[str] = frozenset()
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LaterRecord:
    """The record of a later release, which has one more field."""

    name: str
    weight: int = 7


texts = st.text(st.characters(codec="utf-8"), max_size=8)
records = st.builds(
    Record, texts, st.just(Colour.RED), st.frozensets(texts), st.dictionaries(texts, st.integers(-(1 << 63), 1 << 63))
)


@given(records)
def test_a_record_is_read_as_it_was_written(record: Record) -> None:
    assert decode_record(encode_record(record), Record) == record


def test_equal_records_have_equal_bytes() -> None:
    first = Record("a", members=frozenset("xyz"), counts={"b": 1, "a": 2})
    second = Record("a", members=frozenset("zyx"), counts={"a": 2, "b": 1})
    assert encode_record(first) == encode_record(second)


def test_a_record_of_a_release_without_format_numbers_is_read() -> None:
    assert decode_record(b'{"name": "a"}', Record) == Record("a")


def test_a_record_of_a_newer_format_is_unreadable() -> None:
    data = encode_record(Record("a")).replace(b'"format":%d' % FORMAT, b'"format":%d' % (FORMAT + 1))
    with pytest.raises(UnreadableRecordError):
        decode_record(data, Record)


def test_a_field_that_a_later_release_added_is_ignored_and_gets_its_default_from_an_earlier_one() -> None:
    assert decode_record(encode_record(LaterRecord("a", 9)), Record) == Record("a")
    assert decode_record(encode_record(Record("a")), LaterRecord) == LaterRecord("a")


def test_a_field_of_the_path_is_not_stored() -> None:
    data = encode_record(Record("a"), without=["name"])
    assert b"name" not in data
    assert decode_record(data, Record, name="b") == Record("b")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff",
        b"{}",
        b'{"name": 1}',
        b'{"name": null}',
        b'{"name": "a", "colour": "blue"}',
        b'{"name": "a", "members": "xyz"}',
        b'{"name": "a", "counts": {"b": 1.5}}',
        b'{"name": "a", "format": "x"}',
        b'{"name": "a", "format": true}',
        b'{"name": "a", "x": ' + b"[" * 100_000,
    ],
)
def test_a_damaged_record_is_an_error(data: bytes) -> None:
    with pytest.raises(UnreadableRecordError):
        decode_record(data, Record)


def test_a_required_field_has_no_default() -> None:
    with pytest.raises(UnreadableRecordError):
        decode_record(b'{"name": "a"}', Record, required=["members"])
