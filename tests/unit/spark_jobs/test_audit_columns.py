"""The fast decoder of the scan compared with the reference decoder: equal on valid and on damaged metadata."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bookie.metadata.ledgers.serde import UnreadableMetadataError, decode, encode
from bookie.model.ids import BookieId, EntryId
from bookie.model.isolation import POLICY_KEY, Isolation, UnreadableIsolationError, isolation_of
from bookie.model.metadata import DigestType, Fragment, LedgerMetadata, LedgerState
from bookie.model.ownership import OWNER_COLUMNS, owner_names, owner_of
from spark_jobs.datasource import counts as counts_module
from spark_jobs.datasource.brief_columns import BriefColumns
from spark_jobs.datasource.columns import LedgerColumns
from spark_jobs.datasource.usual_metadata import HealthyMetadataRecognizer, usual_message
from spark_jobs.group_rows import groups_text, parse_groups_text
from tests.worlds.ledgers import make_metadata

BOOKIES = [BookieId(f"bookie-{number}.example.org:3181") for number in range(6)] + [BookieId("b"), BookieId("x" * 200)]

STATE_COUNTS = {LedgerState.OPEN: "open", LedgerState.IN_RECOVERY: "in_recovery", LedgerState.CLOSED: "closed"}

relaxed = settings(deadline=None)  # the first example also has to import modules


def custom_metadata() -> st.SearchStrategy[tuple[tuple[str, bytes], ...]]:
    """Arbitrary custom metadata, and Pulsar's, intact and damaged."""
    name = st.sampled_from([b"t/n/persistent/a", b"t/n/persistent/%zz", b"\xff"])
    anything = st.dictionaries(st.text(max_size=4), st.binary(max_size=3)).map(dict.items)
    pulsars = name.map(
        lambda text: [("application", b"pulsar"), ("component", b"managed-ledger"), ("pulsar/managed-ledger", text)]
    )
    policies = st.sampled_from([b'{"isolationBookieGroups": "red,blue", "secondaryIsolationBookieGroups": "b"}', b"7"])
    groups = policies.map(
        lambda text: [
            (POLICY_KEY, b'{"policyClass": "IsolatedBookieEnsemblePlacementPolicy", "properties": %b}' % text)
        ]
    )
    return st.one_of(anything, pulsars, groups).map(tuple)


@st.composite
def ledger_metadata(draw: st.DrawFn, versions: Sequence[int] = (3, 3, 3, 2, 1)) -> LedgerMetadata:
    version = draw(st.sampled_from(versions))
    size = draw(st.integers(1, 5))
    write_quorum = draw(st.integers(1, size))
    starts = sorted(draw(st.sets(st.integers(0, 1 << draw(st.integers(1, 62))), min_size=1, max_size=5)))
    ensembles = st.lists(st.sampled_from(BOOKIES), min_size=size, max_size=size).map(tuple)
    state = draw(st.sampled_from(LedgerState))
    is_closed = state is LedgerState.CLOSED
    big = st.integers(0, (1 << 63) - 1)
    return LedgerMetadata(
        ensemble_size=size,
        write_quorum=write_quorum,
        ack_quorum=write_quorum if version == 1 else draw(st.integers(0, write_quorum)),
        fragments=tuple(Fragment(EntryId(start), draw(ensembles)) for start in starts),
        state=state,
        last_entry_id=EntryId(draw(st.integers(-1, 300) | big)) if is_closed else None,
        length=draw(st.integers(0, 300) | big) if is_closed else None,
        digest_type=None if version == 1 else draw(st.sampled_from(DigestType)),
        password=None if version == 1 else draw(st.binary(max_size=3) | st.binary(min_size=126, max_size=130)),
        ctime_ms=None if version == 1 else draw(st.none() | st.integers(0, 1 << 50) | st.integers(-5, -1)),
        custom=() if version == 1 else draw(custom_metadata()),
        ctoken=draw(st.none() | big) if version == 3 else None,
        format_version=version,
    )


def expected_row(data: bytes) -> Mapping[str, Any]:
    try:
        metadata = decode(data)
    except UnreadableMetadataError as error:
        return dict.fromkeys(LedgerColumns().schema.names) | {"error": str(error)}
    fragments = [
        {
            "first_entry_id": fragment.first_entry_id,
            "last_entry_id": metadata.fragment_last_entry_id(index),
            "members": list(fragment.members),
        }
        for index, fragment in enumerate(metadata.fragments)
    ]
    return {
        "state": metadata.state.name,
        "ensemble_size": metadata.ensemble_size,
        "write_quorum": metadata.write_quorum,
        "ack_quorum": metadata.ack_quorum,
        "last_entry_id": metadata.last_entry_id,
        "length": metadata.length,
        "digest_type": None if metadata.digest_type is None else metadata.digest_type.name,
        "ctime_ms": metadata.ctime_ms,
        "format_version": metadata.format_version,
        "fragments": fragments,
        "error": None,
        **dict(zip(OWNER_COLUMNS, owner_names(owner_of(metadata.custom)), strict=True)),
        "bookie_groups": expected_groups(metadata),
    }


def expected_groups(metadata: LedgerMetadata) -> str | None:
    try:
        wish = isolation_of(metadata.custom)
    except UnreadableIsolationError as error:
        return groups_text(str(error))
    return None if wish is None else groups_text(wish)


@given(st.frozensets(st.text()), st.frozensets(st.text()), st.text())
def test_groups_are_read_back_from_their_column(primary: frozenset[str], secondary: frozenset[str], why: str) -> None:
    assert parse_groups_text(groups_text(Isolation(primary, secondary))) == (Isolation(primary, secondary), "")
    assert parse_groups_text(groups_text(why)) == (None, why)


def rows_of(encoded: Sequence[bytes], live: frozenset[str] | None = None) -> list[Mapping[str, Any]]:
    columns = LedgerColumns(live)
    for number, data in enumerate(encoded):
        columns.add(number, data)
    batch = columns.take_batch()
    batch.validate(full=True)
    rows: list[Mapping[str, Any]] = batch.to_pylist()
    return rows


PULSARS = (
    ("application", b"pulsar"),
    ("component", b"managed-ledger"),
    ("pulsar/managed-ledger", b"t/n/persistent/a"),
)


def test_the_owner_and_groups_of_a_ledger_do_not_leak_into_the_next_batch() -> None:
    wish = {
        "policyClass": "IsolatedBookieEnsemblePlacementPolicy",
        "properties": {"isolationBookieGroups": "red"},
    }
    owned = ((POLICY_KEY, json.dumps(wish).encode()), *PULSARS)
    columns = LedgerColumns(None)
    plain = make_metadata((0, "a b"), quorum=(2, 2), last=9)
    columns.add(1, encode(replace(plain, custom=owned)))
    (first,) = columns.take_batch().to_pylist()
    columns.add(2, encode(plain))
    (second,) = columns.take_batch().to_pylist()
    assert (first["topic"], parse_groups_text(first["bookie_groups"])) == (
        "persistent://t/n/a",
        (Isolation(frozenset({"red"})), ""),
    )
    assert [second[name] for name in (*OWNER_COLUMNS, "bookie_groups")] == [None] * (len(OWNER_COLUMNS) + 1)


def brief_rows_of(encoded: Sequence[bytes]) -> list[Mapping[str, Any]]:
    columns = BriefColumns(is_summarized=True)
    for number, data in enumerate(encoded):
        columns.add(number, data)
    batch = columns.take_batch()
    batch.validate(full=True)
    (summary,) = columns.take_summary().to_pylist()
    assert summary["summary"]["returned"] == len(encoded)
    rows: list[Mapping[str, Any]] = batch.drop_columns("summary").to_pylist()
    return rows


def assert_like_reference(encoded: Sequence[bytes]) -> None:
    expected = [dict(expected_row(data)) | {"ledger_id": number} for number, data in enumerate(encoded)]
    assert rows_of(encoded) == expected


@relaxed
@given(st.lists(ledger_metadata(), max_size=6))
def test_rows_equal_the_reference_decoder(ledgers: list[LedgerMetadata]) -> None:
    assert_like_reference([encode(metadata) for metadata in ledgers for _ in range(2)])


@relaxed
@given(st.lists(st.one_of(ledger_metadata().map(encode), st.binary(max_size=60)), max_size=6))
def test_brief_rows_agree_with_full_ones(encoded: list[bytes]) -> None:
    hashes: dict[str | None, set[int]] = {}
    for brief, full in zip(brief_rows_of(encoded), rows_of(encoded), strict=True):
        is_readable = full["error"] is None
        assert (brief["ledger_id"], brief["error"]) == (full["ledger_id"], full["error"])
        assert brief["is_closed"] == (full["state"] == "CLOSED" if is_readable else None)
        assert brief["is_pulsar"] == (full["component"] is not None if is_readable else None)
        if full["topic"] is not None:
            hashes.setdefault(full["topic"], set()).add(brief["topic_hash"])
    assert all(len(each) == 1 and each != {None} for each in hashes.values())


@relaxed
@given(ledger_metadata([3]), st.data())
def test_ledgers_of_the_same_shape_keep_their_own_numbers(metadata: LedgerMetadata, data: st.DataObject) -> None:
    others = data.draw(st.lists(ledger_metadata([3]), min_size=1, max_size=3))
    mixed = [
        encode(
            LedgerMetadata(
                metadata.ensemble_size,
                metadata.write_quorum,
                metadata.ack_quorum,
                metadata.fragments,
                metadata.state,
                metadata.last_entry_id
                if other.last_entry_id is None or not metadata.is_closed
                else other.last_entry_id,
                metadata.length if other.length is None or not metadata.is_closed else other.length,
                metadata.digest_type,
                metadata.password,
                other.ctime_ms,
                other.custom,
                other.ctoken,
            )
        )
        for other in others
    ]
    assert_like_reference([encode(metadata), *mixed])


@pytest.mark.filterwarnings("ignore:invalid escape sequence:DeprecationWarning")  # for protobuf's text parser, format 2
@relaxed
@given(st.lists(ledger_metadata(), min_size=1, max_size=2), st.data())
def test_damaged_bytes_are_handled_as_by_the_reference_decoder(
    ledgers: list[LedgerMetadata], data: st.DataObject
) -> None:
    encoded = [encode(metadata) for metadata in ledgers]
    damaged = []
    for whole in encoded:
        cut = data.draw(st.integers(0, len(whole)))
        flips = data.draw(st.dictionaries(st.integers(0, len(whole) - 1), st.integers(0, 255), max_size=3))
        damaged += [whole[:cut], bytes(flips.get(at, byte) for at, byte in enumerate(whole)), whole + whole[cut:]]
    # The intact ones come first, so the decoder has seen their shape when it decodes the damaged ones.
    assert_like_reference([*encoded, *damaged])


@relaxed
@given(st.binary(max_size=60))
@example(b"")
@example(b"BookieMetadataFormatVersion\t3\n")
@example(b"BookieMetadataFormatVersion\t3\n\x0a\x08\x02\x10\x02\x18\x00\x20\x00\x28\x01")
def test_arbitrary_bytes_give_a_row(data: bytes) -> None:
    assert_like_reference([data, b"BookieMetadataFormatVersion\t3\n" + data])


@relaxed
@given(ledger_metadata([3]))
def test_current_metadata_takes_the_fast_path(metadata: LedgerMetadata) -> None:
    assert usual_message(encode(metadata)) is not None


def closed(members: tuple[str, ...], last_entry_id: int = 9) -> bytes:
    fragments = (Fragment(EntryId(0), tuple(BookieId(member) for member in members)),)
    return encode(LedgerMetadata(len(members), 1, 1, fragments).closed(EntryId(last_entry_id), 500))


@relaxed
@given(ledger_metadata([3]))
def test_a_healthy_ledger_of_one_fragment_is_recognized_by_its_bytes(metadata: LedgerMetadata) -> None:
    metadata = replace(metadata, fragments=metadata.fragments[:1])
    healthy = HealthyMetadataRecognizer(frozenset(BOOKIES))
    quorums = metadata.write_quorum, metadata.ack_quorum
    expected = (metadata.state.value, *quorums, metadata.fragments[0].members)
    password = metadata.password or b""
    fits = len(password) < 128 and b"H" not in password
    assert not fits or healthy.recognize(encode(metadata)) == expected
    assert HealthyMetadataRecognizer(frozenset()).recognize(encode(metadata)) is None


def test_a_healthy_ledger_is_recognized_by_its_bytes_if_bookies_have_long_names() -> None:
    """Names of three pods of Kubernetes are longer than the 127 bytes that a size of one byte can describe."""
    members = tuple(f"pulsar-bookie-{number}.pulsar-bookie.pulsar.svc.cluster.local:3181" for number in range(3))
    data = closed(members)
    healthy = HealthyMetadataRecognizer(frozenset(members))
    assert healthy.recognize(data) == (LedgerState.CLOSED.value, 1, 1, members)
    size = data.index(b"\x32") + 1
    for other in (data[size] - 1, data[size] + 1):
        assert healthy.recognize(data[:size] + bytes([other]) + data[size + 1 :]) is None
    assert healthy.recognize(data[: size + 60]) is None
    assert_like_reference([data])


HEADER = b"BookieMetadataFormatVersion\t3\n"
SOUND = b"\x08\x02\x10\x02\x18\x07\x20\x05\x28\x03\x32\x08\x0a\x01a\x0a\x01b\x10\x00\x38\x01\x42\x02pw\x48\x01\x50\x09"
FRAGMENT = b"\x32\x08\x0a\x01a\x0a\x01b\x10\x00"
CUSTOM = b"\x5a\x09\x0a\x03key\x12\x02vv" + b"\x5a\x06\x0a\x01k\x12\x01v" + b"\x60\x05"


def delimited(body: bytes, more: int = 0) -> bytes:
    return HEADER + bytes([len(body) + more]) + body


@pytest.mark.parametrize(
    ("what", "by"),
    [
        (b"\x08\x02", b"\x08\x03"),  # write quorum above the ensemble size
        (b"\x08\x02", b"\x08\x00"),  # no write quorum
        (b"\x48\x01", b"\x48\x03"),  # ack quorum above the write quorum
        (b"\x48\x01", b"\x48" + b"\xff" * 9 + b"\x01"),  # negative ack quorum
        (b"\x48\x01", b""),  # no ack quorum
        (b"\x10\x02", b"\x10\x03"),  # more positions than members
        (b"\x20\x05", b""),  # no last entry
        (b"\x28\x03", b"\x28\x04"),  # unknown state
        (b"\x38\x01", b"\x38\x05"),  # unknown digest type
        (b"\x42\x02pw", b""),  # no password
        (b"\x42\x02pw", b"\x42\x01pw"),  # sizes that do not fit the following bytes
        (b"\x42\x02pw", b"\x42\x03pw"),
        (b"\x32\x08", b"\x32\x07"),
        (b"\x32\x08", b"\x32\x09"),
        (FRAGMENT, b"\x32\x06\x0a\x01a\x0a\x01b"),  # no first entry
        (FRAGMENT, FRAGMENT[:-2] + b"\x18\x00"),
        (FRAGMENT, FRAGMENT[:-1] + b"\x80"),
        (FRAGMENT, b"\x32\x11\x0a\x01a\x0a\x01b\x10" + b"\xff" * 9 + b"\x01"),  # negative first entry
        (b"\x0a\x01b", b"\x0a\x01c"),  # a bookie that is not in the cluster
        (b"\x0a\x01b", b"\x0a\x01\xff"),  # not UTF-8
        (FRAGMENT, FRAGMENT + FRAGMENT.replace(b"\x10\x00", b"\x10\x01")),  # another fragment
        (FRAGMENT, b""),
        (b"\x50\x09", b"\x50\x09\x7a\x00"),  # an unknown field
        (b"\x50\x09", b"\x50" + b"\x80" * 10 + b"\x00"),  # a varint of eleven bytes
    ],
)
def test_another_form_is_not_mistaken_for_a_healthy_ledger(what: bytes, by: bytes) -> None:
    assert SOUND.count(what) == 1
    sound, other = delimited(SOUND), delimited(SOUND.replace(what, by))
    healthy = HealthyMetadataRecognizer(frozenset("ab"))
    assert healthy.recognize(sound) == (LedgerState.CLOSED.value, 2, 1, ("a", "b"))
    assert healthy.recognize(other) is None
    assert_like_reference([sound, other])


@pytest.mark.parametrize(
    ("what", "by"),
    [
        (b"key", b"k\xffy"),  # not UTF-8
        (b"\x0a\x03key", b""),  # no key
        (b"\x12\x02vv", b""),  # no value
        (b"\x12\x02vv", b"\x12\x01vv"),  # sizes that do not fit the following bytes
        (b"\x12\x02vv", b"\x12\x03vv"),
        (b"\x0a\x03", b"\x0a\x04"),
        (b"\x5a\x09", b"\x5a\x0a"),
        (b"\x5a\x06", b"\x5a\x05"),
        (b"\x5a\x06", b"\x5a\x86\x80\x00"),  # a size of three bytes
        (b"\x60\x05", b"\x60"),  # cut
        (b"\x60\x05", b"\x5a"),
        (b"\x60\x05", b"\x60\x05\x7a\x00"),  # an unknown field
        (b"\x60\x05", b"\x7a\x00"),
    ],
)
def test_another_form_of_custom_metadata_is_not_mistaken_for_a_healthy_ledger(what: bytes, by: bytes) -> None:
    assert CUSTOM.count(what) == 1
    sound, other = delimited(SOUND + CUSTOM), delimited(SOUND + CUSTOM.replace(what, by))
    healthy = HealthyMetadataRecognizer(frozenset("ab"))
    for _ in range(2):  # the second time, the key is cached
        assert healthy.recognize(sound) == (LedgerState.CLOSED.value, 2, 1, ("a", "b"))
        assert healthy.recognize(other) is None
    assert_like_reference([sound, other])


def test_long_custom_metadata_is_recognized_by_its_bytes() -> None:
    name = b"public/default/persistent/" + b"t" * 200
    custom = (("application", b"pulsar"), ("component", b"managed-ledger"), ("pulsar/managed-ledger", name))
    metadata = replace(decode(closed(("a", "b"))), custom=custom, ctoken=5)
    assert HealthyMetadataRecognizer(frozenset("ab")).recognize(encode(metadata)) == (
        LedgerState.CLOSED.value,
        1,
        1,
        ("a", "b"),
    )


def test_bytes_after_a_message_are_ignored() -> None:
    assert_like_reference([delimited(SOUND) + b"\x28\x01", delimited(SOUND) + b"\x08"])


@pytest.mark.parametrize("size", [0x3F00, 0x4000, 0x5000, 1 << 21])
def test_long_metadata_is_read_as_by_the_reference_decoder(size: int) -> None:
    assert_like_reference([encode(replace(decode(closed(("a", "b"))), custom=(("key", b"v" * size),)))])


@pytest.mark.parametrize("more", [-1, 1])
def test_a_wrong_length_is_not_mistaken_for_a_healthy_ledger(more: int) -> None:
    assert HealthyMetadataRecognizer(frozenset("ab")).recognize(delimited(SOUND, more)) is None


def test_ledgers_on_live_bookies_are_counted_and_left_out() -> None:
    columns = LedgerColumns(frozenset({"a", "b", "c"}), is_summarized=True)
    for number, data in enumerate([closed(("a", "b")), closed(("a", "gone")), b"damage", closed(("a", "b"), 77)]):
        columns.add(number, data)
    assert columns.take_batch()["ledger_id"].to_pylist() == [1, 2]
    summary = columns.take_summary().to_pylist()[0]["summary"]
    assert (summary["ledgers"], summary["unreadable"], summary["returned"], summary["closed"]) == (3, 1, 2, 3)
    assert summary["bookies"] == [
        {"bookie_id": "a", "ledgers": 3, "fragments": 3},
        {"bookie_id": "b", "ledgers": 2, "fragments": 2},
        {"bookie_id": "gone", "ledgers": 1, "fragments": 1},
    ]


def test_metadata_with_a_live_name_that_is_not_a_bookie_id_is_unreadable() -> None:
    columns = LedgerColumns(frozenset({"ab", "c,"}))
    columns.add(1, closed(("ab", "cd")).replace(b"cd", b"c,"))
    assert [error is None for error in columns.take_batch()["error"].to_pylist()] == [False]


@pytest.mark.filterwarnings("ignore:invalid escape sequence:DeprecationWarning")  # for protobuf's text parser, format 2
@relaxed
@given(st.lists(ledger_metadata([3, 3, 3, 3, 2]), min_size=1, max_size=3), st.sets(st.sampled_from(BOOKIES)), st.data())
def test_ledgers_are_left_out_and_counted_as_by_the_reference_decoder(
    ledgers: list[LedgerMetadata], live: set[str], data: st.DataObject
) -> None:
    encoded = [encode(replace(each, fragments=each.fragments[:1])) for each in ledgers] + [encode(ledgers[0])]
    for whole in encoded[:]:
        flips = data.draw(st.dictionaries(st.integers(0, len(whole) - 1), st.integers(0, 255), max_size=2))
        cut = data.draw(st.integers(0, len(whole)))
        damaged = bytes(flips.get(at, byte) for at, byte in enumerate(whole))
        encoded += [whole, damaged, whole[:cut], whole + whole[cut:], whole[:cut] + whole[cut + 1 :]]
    columns = LedgerColumns(frozenset(live), is_summarized=True)
    left: list[int] = []
    counts = Counter[str]()
    by_bookie = Counter[str]()
    for number, each in enumerate(encoded):
        columns.add(number, each)
        try:
            metadata = decode(each)
        except UnreadableMetadataError:
            counts["unreadable"] += 1
            left.append(number)
        else:
            counts.update(["ledgers", STATE_COUNTS[metadata.state]])
            counts["fragments"] += len(metadata.fragments)
            by_bookie.update(metadata.members())
            if not metadata.members() <= live:
                left.append(number)
    assert columns.take_batch()["ledger_id"].to_pylist() == left
    summary = columns.take_summary().to_pylist()[0]["summary"]
    assert {name: summary[name] for name in (*STATE_COUNTS.values(), "ledgers", "fragments", "unreadable")} == {
        name: counts[name] for name in (*STATE_COUNTS.values(), "ledgers", "fragments", "unreadable")
    }
    assert {each["bookie_id"]: each["ledgers"] for each in summary["bookies"]} == dict(by_bookie)


@pytest.mark.parametrize("single_max", [0, 4, 100_000])
def test_counts_do_not_depend_on_when_ensembles_are_counted(single_max: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts_module, "_SINGLE_MAX", single_max)
    columns = LedgerColumns(is_summarized=True)
    for number, pair in enumerate(itertools.product("abc", "abc")):
        for repeat in range(3):
            columns.add(number, closed(pair, repeat))
    assert len(columns.take_batch()) == 27
    summary = columns.take_summary().to_pylist()[0]["summary"]
    assert (summary["ledgers"], summary["fragments"]) == (27, 27)
    assert [bookie["ledgers"] for bookie in summary["bookies"]] == [15, 15, 15]


def test_a_bookie_that_a_fragment_names_twice_counts_once_for_it() -> None:
    columns = LedgerColumns(is_summarized=True)
    fragments = (Fragment(EntryId(0), (BookieId("a"),) * 2), Fragment(EntryId(5), (BookieId("a"), BookieId("b"))))
    columns.add(1, encode(LedgerMetadata(2, 2, 2, fragments)))
    columns.add(2, closed(("a", "a")))
    columns.take_batch()
    assert columns.take_summary().to_pylist()[0]["summary"]["bookies"] == [
        {"bookie_id": "a", "ledgers": 2, "fragments": 3},
        {"bookie_id": "b", "ledgers": 1, "fragments": 1},
    ]


def test_a_batch_can_be_empty() -> None:
    assert len(LedgerColumns().take_batch()) == 0
