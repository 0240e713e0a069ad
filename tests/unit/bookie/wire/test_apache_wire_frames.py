"""Frames and outcomes of Apache's protocol, without a network."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.wire.apache import protocol_pb2 as pb
from bookie.wire.apache import statuses
from bookie.wire.apache.framing import (
    FRAME_BYTES_LIMIT,
    FRAME_BYTES_MAX,
    HEAD_BYTES,
    FrameSplitter,
    FrameTooLargeError,
    MalformedFrameError,
    framed,
)
from bookie.wire.port import Status

FENCE_READ = bytes.fromhex(
    "000000310a06080310011801a20626080710ffffffffffffffffff011a14850bf1071c5e3d8c24235676f8816ae0cbe2f14fa00601"
)
"""Version 3, ledger 7, entry -1, transaction 1, with the master key of an empty password.

Source: docs/formats.md#version-3.
"""


def test_a_fencing_read_is_encoded_as_documented() -> None:
    [body] = FrameSplitter().feed(FENCE_READ)
    request = pb.Request.FromString(body)
    assert (request.header.version, request.header.operation, request.header.txnId) == (3, pb.READ_ENTRY, 1)
    read = request.readRequest
    assert (read.ledgerId, read.entryId, read.flag) == (7, -1, pb.ReadRequest.FENCE_LEDGER)
    assert read.masterKey.hex() == "850bf1071c5e3d8c24235676f8816ae0cbe2f14f"
    assert framed(request.SerializeToString()) == FENCE_READ


bodies = st.lists(st.binary(min_size=1, max_size=300), max_size=10)


@given(bodies=bodies, cuts=st.lists(st.integers(0, 3000), max_size=30))
def test_frames_are_complete_however_the_stream_is_split(bodies: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(map(framed, bodies))
    ends = sorted({min(cut, len(stream)) for cut in cuts} | {len(stream)})
    found: list[bytes] = []
    splitter, start = FrameSplitter(), 0
    for end in ends:
        found.extend(splitter.feed(stream[start:end]))
        start = end
    assert found == bodies
    assert splitter.is_between_frames


@given(st.binary(max_size=500))
def test_random_bytes_are_frames_or_refused(data: bytes) -> None:
    splitter = FrameSplitter(bytes_max=200)
    with contextlib.suppress(MalformedFrameError):
        assert all(0 < len(body) <= 196 for body in splitter.feed(data))


def test_an_incomplete_frame_is_not_between_frames() -> None:
    splitter = FrameSplitter()
    assert list(splitter.feed(framed(b"whole") + b"\0")) == [b"whole"]
    assert not splitter.is_between_frames


def test_the_limit_includes_the_length_field_and_earlier_frames_are_delivered() -> None:
    fits, too_long = bytes(FRAME_BYTES_MAX - 4), bytes(FRAME_BYTES_MAX - 3)
    assert list(FrameSplitter().feed(framed(fits))) == [fits]
    found = FrameSplitter().feed(framed(b"before") + framed(too_long))
    assert next(found) == b"before"
    with pytest.raises(FrameTooLargeError, match=f"{FRAME_BYTES_MAX + 1} bytes.*{FRAME_BYTES_MAX}"):
        next(found)


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=8), st.data())
def test_long_frames_are_skipped_in_order_however_the_stream_is_split(bodies: list[bytes], data: st.DataObject) -> None:
    seen: list[bytes] = []
    reported: list[int] = []

    def too_long(head: bytes, frame_bytes: int) -> None:
        seen.append(head)
        reported.append(frame_bytes)

    splitter, stream = FrameSplitter(100, too_long), b"".join(map(framed, bodies))
    while stream:
        cut = data.draw(st.integers(1, len(stream)))
        seen.extend(splitter.feed(stream[:cut]))
        stream = stream[cut:]
    assert seen == [body if len(body) <= 96 else body[:HEAD_BYTES] for body in bodies]
    assert reported == [len(body) + 4 for body in bodies if len(body) > 96]
    assert splitter.is_between_frames


def test_the_middle_of_a_skipped_frame_is_not_between_frames() -> None:
    splitter = FrameSplitter(100, lambda head, frame_bytes: None)
    assert not list(splitter.feed(framed(bytes(200))[:-1]))
    assert not splitter.is_between_frames


def test_an_absurd_length_is_not_skipped() -> None:
    splitter = FrameSplitter(100, lambda head, frame_bytes: None)
    with pytest.raises(FrameTooLargeError):
        list(splitter.feed((FRAME_BYTES_LIMIT - 3).to_bytes(4, "big") + bytes(HEAD_BYTES)))


@pytest.mark.parametrize("length", [0, -1, -(1 << 31)])
def test_zero_and_negative_lengths_are_malformed(length: int) -> None:
    with pytest.raises(MalformedFrameError):
        list(FrameSplitter().feed(length.to_bytes(4, "big", signed=True)))


IN_BOTH_VERSIONS = (
    Status.OK,
    Status.NO_ENTRY,
    Status.NO_LEDGER,
    Status.FENCED,
    Status.UNAUTHORIZED,
    Status.READ_ONLY,
    Status.TOO_MANY_REQUESTS,
    Status.IO_ERROR,
    Status.BAD_REQUEST,
)


def test_a_status_that_both_protocols_have_survives_the_round_trip() -> None:
    for status in IN_BOTH_VERSIONS:
        assert statuses.status_of_code(statuses.code_of_status(status)) is status
    assert statuses.status_of_code(statuses.code_of_status(Status.LIMBO)) is Status.LIMBO


def test_version_2_has_the_documented_numbers() -> None:
    assert {status: statuses.v2_of_status(status) for status in IN_BOTH_VERSIONS} == {
        Status.OK: 0,
        Status.NO_LEDGER: 1,
        Status.NO_ENTRY: 2,
        Status.BAD_REQUEST: 100,
        Status.IO_ERROR: 101,
        Status.UNAUTHORIZED: 102,
        Status.FENCED: 104,
        Status.READ_ONLY: 105,
        Status.TOO_MANY_REQUESTS: 106,
    }


@pytest.mark.parametrize("status", [status for status in Status if status not in IN_BOTH_VERSIONS])
def test_a_status_that_apache_lacks_is_an_io_error_and_never_absent(status: Status) -> None:
    code = statuses.code_of_status(status)
    assert code == (pb.EUNKNOWNLEDGERSTATE if status is Status.LIMBO else pb.EIO)
    assert statuses.v2_of_status(status) == statuses.EIO_V2


@given(st.integers(-(1 << 31), (1 << 31) - 1))
def test_only_no_such_ledger_and_no_such_entry_mean_absent(code: int) -> None:
    assert statuses.status_of_code(code).is_absent == (code in (402, 403))


def test_unknown_codes_are_io_errors() -> None:
    assert statuses.status_of_code(599) is Status.IO_ERROR
    assert statuses.status_of_code(pb.EBADVERSION) is Status.BAD_REQUEST
