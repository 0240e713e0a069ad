"""Version 2 of Apache's protocol: compared with its documented bytes (docs/formats.md#version-2), and round trips."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.wire.apache import v2
from bookie.wire.apache.framing import MalformedFrameError, framed

KEY = bytes.fromhex("850bf1071c5e3d8c24235676f8816ae0cbe2f14f")
ENTRY = bytes.fromhex("00000000000000070000000000000000ffffffffffffffff00000000000000059e3e717b68656c6c6f")

REQUESTS = {
    "0000004102010000850bf1071c5e3d8c24235676f8816ae0cbe2f14f00000000000000070000000000000000ffffffffffffffff"
    "00000000000000059e3e717b68656c6c6f": v2.AddV2(KEY, ENTRY),
    "000000140202000000000000000000070000000000000000": v2.ReadV2(7, 0),
    "000000280202000500000000000000070000000000000000850bf1071c5e3d8c24235676f8816ae0cbe2f14f": v2.ReadV2(
        7, 0, KEY, v2.DO_FENCING | v2.HIGH_PRIORITY
    ),
}


@pytest.mark.parametrize(("data", "request_"), REQUESTS.items())
def test_requests_are_encoded_as_documented(data: str, request_: v2.RequestV2) -> None:
    assert framed(v2.encode_request(request_)).hex() == data
    assert v2.decode_request(bytes.fromhex(data)[4:]) == request_


def test_an_ok_answer_to_an_add_is_encoded_as_documented() -> None:
    data = bytes.fromhex("00000018020100000000000000000000000000070000000000000000")
    assert framed(v2.encode_response(v2.AddedV2(0, 7, 0))) == data
    assert v2.decode_response(data[4:]) == v2.AddedV2(0, 7, 0)


def test_an_add_takes_its_ids_from_its_entry() -> None:
    add = v2.AddV2(KEY, ENTRY, v2.RECOVERY_ADD)
    assert (add.ledger_id, add.entry_id, add.is_recovery) == (7, 0, True)


ids = st.integers(-(1 << 63), (1 << 63) - 1)
codes = st.integers(-(1 << 31), (1 << 31) - 1)
keys = st.binary(min_size=20, max_size=20)
versions = st.integers(1, 255)
plain_flags = st.integers(0, 0xFFFF).map(lambda flags: flags & ~v2.DO_FENCING)
fencing_flags = plain_flags.map(lambda flags: flags | v2.DO_FENCING)
auths = st.builds(v2.AuthV2, st.text(max_size=20), st.binary(max_size=50), versions)
requests = st.one_of(
    st.builds(v2.AddV2, keys, st.binary(min_size=16, max_size=100), st.integers(0, 0xFFFF), versions),
    st.builds(v2.ReadV2, ids, ids, st.just(b""), plain_flags, versions),
    st.builds(v2.ReadV2, ids, ids, keys, fencing_flags, st.integers(2, 255)),
    st.builds(v2.ReadV2, ids, ids, version=st.just(0)),
    st.builds(v2.BatchReadV2, ids, ids, ids, codes, ids, st.just(b""), plain_flags, versions),
    st.builds(v2.BatchReadV2, ids, ids, ids, codes, ids, keys, fencing_flags, st.integers(2, 255)),
    auths,
)
responses = st.one_of(
    st.builds(v2.AddedV2, codes, ids, ids, st.integers(0, 255)),
    st.builds(v2.EntryV2, codes, ids, ids, st.binary(max_size=100), st.integers(0, 255)),
    st.builds(v2.BatchV2, codes, ids, ids, ids, st.lists(st.binary(max_size=40), max_size=5).map(tuple)),
    auths,
)


@given(requests)
def test_every_request_survives_the_round_trip(request_: v2.RequestV2) -> None:
    assert v2.decode_request(v2.encode_request(request_)) == request_


@given(responses)
def test_every_answer_survives_the_round_trip(response: v2.ResponseV2) -> None:
    assert v2.decode_response(v2.encode_response(response)) == response


heads = st.sampled_from([bytes([2, opcode, 0, flags]) for opcode in (1, 2, 3, 7) for flags in (0, 1)] + [b""])


@given(heads, st.binary(max_size=200))
def test_random_bytes_are_messages_or_refused(head: bytes, rest: bytes) -> None:
    for decode in (v2.decode_request, v2.decode_response):
        with contextlib.suppress(MalformedFrameError):
            decode(head + rest)


@given(requests, st.data())
def test_a_truncated_request_is_refused_or_another_request(request_: v2.RequestV2, data: st.DataObject) -> None:
    whole = v2.encode_request(request_)
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with contextlib.suppress(MalformedFrameError):
        assert v2.decode_request(cut) != request_


@pytest.mark.parametrize("opcode", [0, 4, 5, 6, 8, 255])
def test_opcodes_without_a_layout_are_refused(opcode: int) -> None:
    for decode in (v2.decode_request, v2.decode_response):
        with pytest.raises(MalformedFrameError, match=f"opcode {opcode}"):
            decode(bytes([2, opcode, 0, 0]) + bytes(60))


def test_a_fencing_read_without_its_key_is_refused_from_version_two_on() -> None:
    body = v2.encode_request(v2.ReadV2(7, 0, b"", v2.DO_FENCING))
    with pytest.raises(MalformedFrameError, match="master key"):
        v2.decode_request(body)
    assert v2.decode_request(b"\1" + body[1:]) == v2.ReadV2(7, 0, b"", v2.DO_FENCING, version=1)


def test_the_key_of_a_plain_read_is_ignored() -> None:
    assert v2.decode_request(v2.encode_request(v2.ReadV2(7, 0, KEY))) == v2.ReadV2(7, 0)


@pytest.mark.parametrize("size", [-1, 6, 1 << 30])
def test_a_batch_whose_sizes_do_not_add_up_is_refused(size: int) -> None:
    body = v2.encode_response(v2.BatchV2(0, 7, 0, 1)) + size.to_bytes(4, "big", signed=True) + b"five5"
    with pytest.raises(MalformedFrameError):
        v2.decode_response(body)


def test_secrets_and_payloads_are_not_in_texts() -> None:
    for message in (v2.AddV2(KEY, ENTRY), v2.ReadV2(7, 0, KEY, 1), v2.AuthV2("sasl", b"\0user\0secret")):
        assert "secret" not in repr(message)
        assert repr(KEY) not in repr(message)
