"""The bytes of the journal: round trips, every cut, every flipped bit."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from bookie.storage.errors import DamagedJournalError, UnsupportedFormatError
from bookie.storage.journal import format as journal_format
from bookie.storage.journal.format import (
    BATCH_HEADER_SIZE,
    FILE_HEADER_SIZE,
    BatchHeader,
    FileHeader,
    Record,
    RecordKind,
    decode_batch_header,
    decode_file_header,
    decode_records,
    encode_batch,
    encode_entries,
    encode_file_header,
    encode_record,
    find_batch_header,
)

EPOCH = 77
U64 = st.integers(0, (1 << 64) - 1)
LEDGER_IDS = st.integers(0, (1 << 63) - 1)
RECORDS = st.lists(st.tuples(st.sampled_from(RecordKind), LEDGER_IDS, st.binary(max_size=40)), max_size=8)


def batch_bytes(
    records: list[tuple[RecordKind, int, bytes]], *, sequence: int = 5, offset: int = 0, count: int | None = None
) -> bytes:
    parts = [encode_record(*record) for record in records]
    header = BatchHeader(EPOCH, sequence, sequence - 1, offset, sum(map(len, parts)), count or len(parts))
    return b"".join(encode_batch(header, parts))


def with_corrected_checksum(data: bytes, at: int, value: bytes, end: int) -> bytes:
    """Replace bytes of ``data``, and correct the checksum that ends at ``end``."""
    changed = data[:at] + value + data[at + len(value) : end]
    return changed + struct.pack(">I", crc32c(changed)) + data[end + 4 :]


@given(U64, U64, U64)
def test_file_header_survives_the_round_trip(epoch: int, number: int, durable: int) -> None:
    header = FileHeader(epoch, number, durable)
    data = encode_file_header(header)
    assert len(data) == FILE_HEADER_SIZE
    assert decode_file_header(data + b"more") == header


@given(RECORDS, st.integers(0, 200), st.binary(max_size=30))
def test_batch_survives_the_round_trip_anywhere_in_a_file(
    records: list[tuple[RecordKind, int, bytes]], offset: int, behind: bytes
) -> None:
    data = b"\x93" * offset + batch_bytes(records, offset=offset) + behind
    header = decode_batch_header(data, offset, EPOCH)
    assert header is not None
    assert header.end == len(data) - len(behind)
    assert decode_records(data, header) == [Record(kind, ledger, body, crc32c(body)) for kind, ledger, body in records]


def test_large_records_are_not_copied_and_small_ones_are_joined() -> None:
    def parts_of(bodies: list[bytes]) -> tuple[BatchHeader, Sequence[bytes]]:
        parts = encode_entries(7, [(body, crc32c(body)) for body in bodies])
        header = BatchHeader(EPOCH, 5, 4, 0, sum(map(len, parts)), len(bodies))
        return header, encode_batch(header, parts)

    for bodies, is_joined in (([b"x" * 100] * 50, True), ([b"x" * 10_000, b"y" * 20_000], False)):
        header, parts = parts_of(bodies)
        assert (len(parts) == 2) is is_joined
        assert all(any(body is part for part in parts) for body in bodies) is not is_joined
        data = b"".join(parts)
        assert header.end == len(data)
        found = decode_records(data, header)
        assert found is not None
        assert [record.body for record in found] == bodies


@given(LEDGER_IDS, st.lists(st.binary(max_size=50)))
def test_entries_are_encoded_like_single_records(ledger_id: int, bodies: list[bytes]) -> None:
    parts = encode_entries(ledger_id, [(body, crc32c(body)) for body in bodies])
    assert b"".join(parts) == b"".join(encode_record(RecordKind.ENTRY, ledger_id, body) for body in bodies)


@given(st.binary(max_size=300))
def test_random_bytes_are_never_a_header(junk: bytes) -> None:
    assert decode_file_header(junk) is None
    assert find_batch_header(junk, 0, EPOCH) is None


def test_batch_truncated_at_any_byte_is_not_a_batch() -> None:
    data = batch_bytes([(RecordKind.ENTRY, 7, b"x" * 40), (RecordKind.FENCE, 7, b"")])
    for size in range(len(data)):
        header = decode_batch_header(data[:size], 0, EPOCH)
        assert header is None or decode_records(data[:size], header) is None, f"cut at {size}"


def test_batch_with_any_flipped_bit_is_not_a_batch() -> None:
    data = batch_bytes([(RecordKind.ENTRY, 7, b"x" * 20), (RecordKind.MASTER_KEY, 7, b"k")])
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        header = decode_batch_header(bytes(damaged), 0, EPOCH)
        assert header is None or decode_records(bytes(damaged), header) is None, f"bit {bit}"


def test_file_header_with_any_flipped_bit_is_not_a_header() -> None:
    data = encode_file_header(FileHeader(1, 2, 3))
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        assert decode_file_header(bytes(damaged)) is None, f"bit {bit}"


def test_batch_is_found_after_random_bytes() -> None:
    junk = b"\x93bkhjbat" * 3
    data = junk + batch_bytes([(RecordKind.FENCE, 7, b"")], offset=len(junk))
    found = find_batch_header(data, 0, EPOCH)
    assert found is not None
    assert found.offset == len(junk)


def test_batch_of_another_epoch_is_not_found() -> None:
    assert find_batch_header(batch_bytes([(RecordKind.FENCE, 7, b"")]), 0, EPOCH + 1) is None


def test_journal_stored_as_a_payload_is_not_mistaken_for_a_batch() -> None:
    stolen = batch_bytes([(RecordKind.FENCE, 7, b"")], offset=0)
    data = batch_bytes([(RecordKind.ENTRY, 9, stolen)], offset=0)
    assert find_batch_header(data, 1, EPOCH) is None


def test_unknown_record_kind_is_refused_not_skipped() -> None:
    data = batch_bytes([(RecordKind.FENCE, 7, b"")])
    kind_at = BATCH_HEADER_SIZE + 8
    strange = with_corrected_checksum(data, kind_at, b"\x05", len(data) - 4)
    header = decode_batch_header(strange, 0, EPOCH)
    assert header is not None
    with pytest.raises(UnsupportedFormatError, match=r"kind 5.*start the version"):
        decode_records(strange, header)


def test_newer_batch_format_is_refused_and_not_mistaken_for_a_torn_tail() -> None:
    data = batch_bytes([(RecordKind.FENCE, 7, b"")])
    newer = with_corrected_checksum(data, 8, b"\x00\x02", BATCH_HEADER_SIZE - 4)
    with pytest.raises(UnsupportedFormatError, match="format 2"):
        decode_batch_header(newer, 0, EPOCH)


def test_newer_file_format_is_refused() -> None:
    data = encode_file_header(FileHeader(1, 1, 0))
    with pytest.raises(UnsupportedFormatError, match="format 2"):
        decode_file_header(with_corrected_checksum(data, 8, b"\x00\x02", FILE_HEADER_SIZE - 4))


def test_record_length_beyond_its_batch_is_refused_before_it_is_read() -> None:
    data = batch_bytes([(RecordKind.ENTRY, 7, b"x" * 10)])
    for length in (b"\xff\xff\xff\xff", b"\x00\x00\x00\x0b"):
        strange = with_corrected_checksum(data, BATCH_HEADER_SIZE, length, len(data) - 4)
        header = decode_batch_header(strange, 0, EPOCH)
        assert header is not None
        with pytest.raises(DamagedJournalError, match="past the end"):
            decode_records(strange, header)


def test_wrong_record_checksum_in_an_intact_batch_is_refused() -> None:
    data = batch_bytes([(RecordKind.ENTRY, 7, b"x" * 10)])
    strange = with_corrected_checksum(data, BATCH_HEADER_SIZE + 4, b"\0\0\0\0", len(data) - 4)
    header = decode_batch_header(strange, 0, EPOCH)
    assert header is not None
    with pytest.raises(DamagedJournalError, match="checksum"):
        decode_records(strange, header)


def test_wrong_record_count_is_refused() -> None:
    data = batch_bytes([(RecordKind.FENCE, 7, b"")], count=2)
    header = decode_batch_header(data, 0, EPOCH)
    assert header is not None
    with pytest.raises(DamagedJournalError, match="declares 2 records, contains 1"):
        decode_records(data, header)


def test_batch_larger_than_the_limit_is_not_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    data = batch_bytes([(RecordKind.ENTRY, 7, b"x" * 100)])
    monkeypatch.setattr(journal_format, "BATCH_BYTES_MAX", 99)
    assert decode_batch_header(data, 0, EPOCH) is None


def test_repr_of_a_record_never_shows_its_body() -> None:
    assert "secret" not in repr(Record(RecordKind.MASTER_KEY, 7, b"secret", 0))
