"""Bytes of ledger metadata: Apache's own samples, every format in both directions, and defined errors on damage."""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bookie.metadata.ledgers.serde import UnreadableMetadataError, UnwritableMetadataError, decode, encode
from bookie.metadata.proto.metadata_formats_pb2 import LedgerMetadataFormat
from bookie.model.ids import BookieId, EntryId
from bookie.model.metadata import DigestType, Fragment, LedgerMetadata, LedgerState

HEADER = bytes.fromhex("426f6f6b69654d65746164617461466f726d617456657273696f6e09")
MEMBERS = (BookieId("bk1:3181"), BookieId("bk2:3181"))
OPEN = LedgerMetadata(2, 2, 2, (Fragment(EntryId(0), MEMBERS),), ctoken=42)
IN_RECOVERY_MEMBERS = tuple(BookieId(f"192.0.2.{i}:1234") for i in (1, 2, 3))
IN_RECOVERY = LedgerMetadata(
    3,
    2,
    2,
    (Fragment(EntryId(0), IN_RECOVERY_MEMBERS),),
    LedgerState.IN_RECOVERY,
    digest_type=DigestType.CRC32,
    password=b"passwd",
    format_version=2,
)

VECTOR_OPEN = bytes.fromhex(
    "426f6f6b69654d65746164617461466f726d617456657273696f6e09330a3308021002180020ffffffffffffffffff01280132160a08626b31"
    "3a333138310a08626b323a333138311000380342004802602a"
)
VECTOR_CLOSED = bytes.fromhex(
    "426f6f6b69654d65746164617461466f726d617456657273696f6e09330a2b0802100218f4032009280332160a08626b313a333138310a0862"
    "6b323a3331383110003803420048026000"
)

# Written by Apache's releases and taken from its tests: 4.0, 4.2, 4.4 to 4.8 with a creation time, and since 4.9.
APACHE_V1 = (
    "Qm9va2llTWV0YWRhdGFGb3JtYXRWZXJzaW9uCTEKMgozCjAKMAkxOTIuMC4yLjE6MTIzNAkxOTIu"
    "MC4yLjI6MTIzNAkxOTIuMC4yLjM6MTIzNAotMTAyCUNMT1NFRA=="
)
APACHE_V2 = (
    "Qm9va2llTWV0YWRhdGFGb3JtYXRWZXJzaW9uCTIKcXVvcnVtU2l6ZTogMgplbnNlbWJsZVNpemU6I"
    "DMKbGVuZ3RoOiAwCmxhc3RFbnRyeUlkOiAtMQpzdGF0ZTogSU5fUkVDT1ZFUlkKc2VnbWVudCB7"
    "CiAgZW5zZW1ibGVNZW1iZXI6ICIxOTIuMC4yLjE6MTIzNCIKICBlbnNlbWJsZU1lbWJlcjogIjE"
    "5Mi4wLjIuMjoxMjM0IgogIGVuc2VtYmxlTWVtYmVyOiAiMTkyLjAuMi4zOjEyMzQiCiAgZmlyc3"
    "RFbnRyeUlkOiAwCn0KZGlnZXN0VHlwZTogQ1JDMzIKcGFzc3dvcmQ6ICJwYXNzd2QiCmFja1F1b"
    "3J1bVNpemU6IDIK"
)
APACHE_V2_CTIME = APACHE_V2[:-4] + "IDIKY3RpbWU6IDE1NDQwMDIzODMwNzUK"
APACHE_V3 = (
    "Qm9va2llTWV0YWRhdGFGb3JtYXRWZXJzaW9uCTMKYAgCEAMYACD///////////8BKAEyMgoOMTkyL"
    "jAuMi4xOjMxODEKDjE5Mi4wLjIuMjozMTgxCg4xOTIuMC4yLjM6MzE4MRAAOANCBmZvb2JhckgB"
    "UP///////////wFgAA=="
)


def test_vectors_of_the_binary_format() -> None:
    assert encode(OPEN) == VECTOR_OPEN
    assert decode(VECTOR_OPEN) == OPEN
    closed = replace(OPEN.closed(EntryId(9), 500), ctoken=0)
    assert encode(closed) == VECTOR_CLOSED
    assert decode(VECTOR_CLOSED) == closed


@pytest.mark.parametrize("sample", [APACHE_V1, APACHE_V2, APACHE_V2_CTIME, APACHE_V3])
def test_apaches_samples_are_written_back_byte_for_byte(sample: str) -> None:
    data = base64.b64decode(sample)
    assert encode(decode(data)) == data


def test_apaches_samples_are_decoded_correctly() -> None:
    assert decode(base64.b64decode(APACHE_V2)) == IN_RECOVERY
    assert decode(base64.b64decode(APACHE_V2_CTIME)) == replace(IN_RECOVERY, ctime_ms=1544002383075)
    v1 = replace(IN_RECOVERY, password=None, digest_type=None, format_version=1)
    assert decode(base64.b64decode(APACHE_V1)) == v1
    v3 = decode(base64.b64decode(APACHE_V3))
    assert (v3.ctime_ms, v3.ctoken, v3.ack_quorum, v3.password) == (-1, 0, 1, b"foobar")


def test_text_format_line_by_line() -> None:
    metadata = replace(OPEN.closed(EntryId(-1), 0), format_version=2, ctoken=None, custom=(("k\n", b"\x00v\xff"),))
    assert encode(metadata).decode() == (
        "BookieMetadataFormatVersion\t2\n"
        "quorumSize: 2\nensembleSize: 2\nlength: 0\nlastEntryId: -1\nstate: CLOSED\n"
        'segment {\n  ensembleMember: "bk1:3181"\n  ensembleMember: "bk2:3181"\n  firstEntryId: 0\n}\n'
        'digestType: CRC32C\npassword: ""\nackQuorumSize: 2\n'
        'customMetadata {\n  key: "k\\n"\n  value: "\\000v\\377"\n}\n'
    )


def test_text_of_other_writers_is_read() -> None:
    text = (
        b"BookieMetadataFormatVersion\t2\n# a comment\nquorumSize:2 ensembleSize: 2 length: 0x0\n"
        b'state: OPEN segment < ensembleMember: \'bk1\' ":3181" ensembleMember: "bk2\\x3a3181" firstEntryId: 0 > '
        b'digestType: CRC32C password: "\\a\\v\\001\\"\\\'" futureField: 7'
    )
    assert decode(text) == replace(OPEN, format_version=2, ctoken=None, password=b"\x07\x0b\x01\"'")


def test_first_format_line_by_line() -> None:
    fragments = (Fragment(EntryId(0), MEMBERS), Fragment(EntryId(7), MEMBERS[::-1]))
    metadata = LedgerMetadata(2, 2, 2, fragments, digest_type=None, password=None, format_version=1)
    head = HEADER + b"1\n2\n2\n"
    lines = b"0\tbk1:3181\tbk2:3181\n7\tbk2:3181\tbk1:3181\n"
    assert encode(metadata) == head + b"0\n" + lines
    assert encode(replace(metadata, state=LedgerState.IN_RECOVERY)) == head + b"0\n" + lines + b"-102\tCLOSED"
    assert encode(metadata.closed(EntryId(9), 500)) == head + b"500\n" + lines + b"9\tCLOSED"
    assert decode(head + b"500\n" + lines + b"9\tCLOSED\nwhatever follows") == metadata.closed(EntryId(9), 500)
    assert decode(head + b"77\n" + lines) == metadata


def test_values_beyond_the_end_are_ignored() -> None:
    assert decode(VECTOR_OPEN + b"trailing bytes") == OPEN


def test_length_and_last_entry_of_an_open_ledger_are_ignored() -> None:
    message = LedgerMetadataFormat.FromString(VECTOR_OPEN[31:])
    message.length, message.lastEntryId = 7, 7
    body = message.SerializeToString()
    assert decode(HEADER + b"3\n" + bytes([len(body)]) + body) == OPEN


def test_absent_ack_quorum_digest_and_password_are_read() -> None:
    message = LedgerMetadataFormat.FromString(VECTOR_OPEN[31:])
    message.ClearField("ackQuorumSize")
    message.ClearField("digestType")
    message.ClearField("cToken")
    assert decode(_binary(message)) == replace(OPEN, digest_type=DigestType.CRC32, ctoken=None)
    message.ClearField("password")
    without = decode(_binary(message))
    assert (without.password, without.digest_type, without.ack_quorum) == (None, None, 2)
    with pytest.raises(UnwritableMetadataError, match="format 1"):
        encode(without)


@pytest.mark.parametrize(
    ("field", "number"),
    [("state", b"\x28\x07"), ("digestType", b"\x38\x63")],
)
def test_unknown_value_is_not_guessed(field: str, number: bytes) -> None:
    message = LedgerMetadataFormat.FromString(VECTOR_OPEN[31:])
    message.ClearField(field)
    body = message.SerializePartialToString() + number
    with pytest.raises(UnreadableMetadataError, match="unknown"):
        decode(HEADER + b"3\n" + bytes([len(body)]) + body)


@pytest.mark.parametrize("field", ["quorumSize", "ensembleSize", "length", "state", "segment"])
def test_missing_field_is_unreadable(field: str) -> None:
    message = LedgerMetadataFormat.FromString(VECTOR_OPEN[31:])
    message.ClearField(field)
    with pytest.raises(UnreadableMetadataError):
        decode(_binary(message))


def test_closed_ledger_without_a_last_entry_is_unreadable() -> None:
    message = LedgerMetadataFormat.FromString(VECTOR_CLOSED[31:])
    message.ClearField("lastEntryId")
    with pytest.raises(UnreadableMetadataError, match="last entry"):
        decode(_binary(message))


@pytest.mark.parametrize("member", ["", "a/b", "readonly", "\u00e9"])
def test_member_that_is_not_a_bookie_id_is_unreadable(member: str) -> None:
    message = LedgerMetadataFormat.FromString(VECTOR_OPEN[31:])
    message.segment[0].ensembleMember[0] = member
    with pytest.raises(UnreadableMetadataError, match="not a bookie id"):
        decode(_binary(message))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"BookieMetadataFormatVersion",
        HEADER,
        HEADER + b"3",
        HEADER + b"3\n",
        HEADER + b"foobar\nblahblah",
        HEADER + b"123456789123456789\nblahblah",
        HEADER + b"4\n" + VECTOR_OPEN[30:],
        HEADER + b"-3\n" + VECTOR_OPEN[30:],
        HEADER + b"\n",
        VECTOR_OPEN[:-1],
        HEADER + b"3\n\xff\xff\xff\xff\xff\xff",
        VECTOR_OPEN.replace(b"bk1", b"\xff\xfe\xfd"),
        HEADER + b"1\n2\n2\n",
        HEADER + b"1\n2\n2\n0\n\xff\tbk1",
        HEADER + b"1\n2\n2\n0\nx\tbk1\tbk2",
        HEADER + b"1\n2\n2\n0\n0\tbk1\tbk2\n" + b"9" * 5000 + b"\tCLOSED",
        HEADER + b"2\nquorumSize: 2",
        HEADER + b"2\n" + b"a {" * 5000,
    ],
)
def test_damaged_bytes_are_unreadable(data: bytes) -> None:
    with pytest.raises(UnreadableMetadataError):
        decode(data)


@given(st.sampled_from([b"", HEADER, HEADER + b"1\n", HEADER + b"2\n", HEADER + b"3\n"]), st.binary(max_size=200))
@example(HEADER + b"3\n", b"\x02\x08")
def test_arbitrary_bytes_are_read_or_unreadable(start: bytes, rest: bytes) -> None:
    _decodes_or_is_unreadable(start + rest)


@given(
    st.sampled_from([VECTOR_OPEN, VECTOR_CLOSED, *map(base64.b64decode, (APACHE_V1, APACHE_V2_CTIME, APACHE_V3))]),
    st.data(),
)
def test_damaged_valid_bytes_are_read_or_unreadable(good: bytes, data: st.DataObject) -> None:
    position = data.draw(st.integers(0, len(good)))
    removed = data.draw(st.integers(0, 4))
    _decodes_or_is_unreadable(good[:position] + data.draw(st.binary(max_size=4)) + good[position + removed :])


def _decodes_or_is_unreadable(data: bytes) -> None:
    try:
        metadata = decode(data)
    except UnreadableMetadataError:
        return
    if metadata.password is not None or metadata.format_version == 1:
        assert decode(encode(metadata)) == metadata or metadata.ctoken is None


bookie_ids = st.from_regex(r"[a-zA-Z0-9:-_.\-]{1,20}", fullmatch=True).filter(lambda text: text.lower() != "readonly")
ids = st.integers(0, (1 << 62))


@st.composite
def metadata_values(draw: st.DrawFn, version: int) -> LedgerMetadata:
    size = draw(st.integers(1, 5))
    write_quorum = draw(st.integers(1, size))
    firsts = sorted(draw(st.sets(ids, min_size=1, max_size=4)))
    members = st.lists(bookie_ids, min_size=size, max_size=size)
    fragments = tuple(Fragment(EntryId(first), tuple(map(BookieId, draw(members)))) for first in firsts)
    state = draw(st.sampled_from(LedgerState))
    is_closed = state is LedgerState.CLOSED
    is_first_format = version == 1
    return LedgerMetadata(
        size,
        write_quorum,
        write_quorum if is_first_format else draw(st.integers(0, write_quorum)),
        fragments,
        state,
        EntryId(draw(st.integers(-1, 1 << 62))) if is_closed else None,
        draw(ids) if is_closed else None,
        None if is_first_format else draw(st.sampled_from(DigestType)),
        None if is_first_format else draw(st.binary(max_size=40)),
        None if is_first_format else draw(st.none() | st.integers(-1, 1 << 62)),
        () if is_first_format else draw(_custom),
        draw(ids) if version == 3 else None,
        version,
    )


_custom = st.dictionaries(st.text(max_size=10), st.binary(max_size=30), max_size=3).map(lambda d: tuple(d.items()))


@given(st.integers(1, 3).flatmap(metadata_values))
def test_all_metadata_is_read_back_as_written(metadata: LedgerMetadata) -> None:
    assert decode(encode(metadata)) == metadata


@pytest.mark.parametrize("version", [0, 4, -1])
def test_unknown_format_is_not_written(version: int) -> None:
    with pytest.raises(UnwritableMetadataError, match=str(version)):
        encode(replace(OPEN, format_version=version))


@pytest.mark.parametrize(
    "change", [{"password": b"", "digest_type": DigestType.CRC32}, {"ctime_ms": 1}, {"custom": (("k", b""),)}]
)
def test_first_format_refuses_what_it_cannot_represent(change: dict[str, object]) -> None:
    plain = replace(OPEN, format_version=1, password=None, digest_type=None, ctoken=None)
    with pytest.raises(UnwritableMetadataError):
        encode(replace(plain, **change))  # type: ignore[arg-type]
    with pytest.raises(UnwritableMetadataError, match="ack quorum"):
        encode(replace(plain, ack_quorum=1))


def _binary(message: LedgerMetadataFormat) -> bytes:
    body = message.SerializePartialToString()
    return HEADER + b"3\n" + bytes([len(body)]) + body
