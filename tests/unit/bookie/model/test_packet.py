from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.model.digest import digest_for
from bookie.model.ids import LEDGER_ID_MAX, EntryId, LedgerId
from bookie.model.metadata import DigestType
from bookie.model.packet import (
    HEADER_SIZE,
    DamagedEntry,
    Entry,
    damage_of,
    pack,
    pack_lac,
    packet_ids,
    unpack,
    unpack_lac,
)

PASSWORD = b"foobar"
LEDGER = LedgerId(7)
ENTRY = EntryId(3)

digest_types = st.sampled_from(list(DigestType))
protecting_types = st.sampled_from([kind for kind in DigestType if kind is not DigestType.DUMMY])
ledger_ids = st.integers(0, LEDGER_ID_MAX).map(LedgerId)
entry_ids = st.integers(0, LEDGER_ID_MAX).map(EntryId)


def flipped(packet: bytes, bit: int) -> bytes:
    damaged = bytearray(packet)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


def example(kind: DigestType, payload: bytes = b"hello") -> bytes:
    return pack(digest_for(kind, PASSWORD), LEDGER, ENTRY, 2, 20, payload)


@given(digest_types, ledger_ids, entry_ids, st.integers(-1, LEDGER_ID_MAX), st.integers(0, LEDGER_ID_MAX), st.binary())
def test_a_packed_entry_is_unpacked(
    kind: DigestType, ledger_id: LedgerId, entry_id: EntryId, lac: int, length: int, payload: bytes
) -> None:
    digest = digest_for(kind, PASSWORD)
    packet = pack(digest, ledger_id, entry_id, lac, length, payload)
    entry = Entry(ledger_id, entry_id, EntryId(lac), length, payload)
    assert unpack(digest, packet, ledger_id, entry_id) == entry
    assert unpack(digest, packet, ledger_id, None) == entry
    assert packet_ids(packet) == (ledger_id, entry_id)


@given(protecting_types, st.binary(max_size=64), st.data())
def test_any_single_flipped_bit_is_damage(kind: DigestType, payload: bytes, data: st.DataObject) -> None:
    packet = example(kind, payload)
    bit = data.draw(st.integers(0, len(packet) * 8 - 1))
    with pytest.raises(DamagedEntry):
        unpack(digest_for(kind, PASSWORD), flipped(packet, bit), LEDGER, ENTRY)


@pytest.mark.parametrize("kind", [DigestType.CRC32, DigestType.CRC32C, DigestType.HMAC])
def test_every_bit_of_one_entry_is_protected(kind: DigestType) -> None:
    packet = example(kind)
    for bit in range(len(packet) * 8):
        with pytest.raises(DamagedEntry):
            unpack(digest_for(kind, PASSWORD), flipped(packet, bit), LEDGER, ENTRY)


def test_without_a_digest_only_the_ids_are_protected() -> None:
    packet = example(DigestType.DUMMY)
    for bit in range(len(packet) * 8):
        if bit < 16 * 8:
            with pytest.raises(DamagedEntry, match="asked for 7/3"):
                unpack(digest_for(DigestType.DUMMY, b""), flipped(packet, bit), LEDGER, ENTRY)
        else:
            unpack(digest_for(DigestType.DUMMY, b""), flipped(packet, bit), LEDGER, ENTRY)


@pytest.mark.parametrize("kind", list(DigestType))
@pytest.mark.parametrize(("ledger_id", "entry_id"), [(8, 3), (7, 4), (8, None)])
def test_another_ledger_or_entry_than_requested_is_damage(
    kind: DigestType, ledger_id: int, entry_id: int | None
) -> None:
    asked = None if entry_id is None else EntryId(entry_id)
    with pytest.raises(DamagedEntry, match="holds ledger 7 entry 3"):
        unpack(digest_for(kind, PASSWORD), example(kind), LedgerId(ledger_id), asked)


@pytest.mark.parametrize("kind", list(DigestType))
def test_every_truncation_is_damage_if_there_is_a_digest(kind: DigestType) -> None:
    digest = digest_for(kind, PASSWORD)
    packet = example(kind)
    shortest = HEADER_SIZE + digest.size
    for size in range(shortest if kind is DigestType.DUMMY else len(packet)):
        with pytest.raises(DamagedEntry):
            unpack(digest, packet[:size], LEDGER, ENTRY)


@given(protecting_types, protecting_types)
def test_another_digest_type_than_the_ledgers_is_damage(written: DigestType, read: DigestType) -> None:
    if written is not read:
        with pytest.raises(DamagedEntry):
            unpack(digest_for(read, PASSWORD), example(written, b"a payload that is long enough"), LEDGER, ENTRY)


def test_another_password_is_damage_under_hmac() -> None:
    with pytest.raises(DamagedEntry, match="HMAC digest mismatch"):
        unpack(digest_for(DigestType.HMAC, b"other"), example(DigestType.HMAC), LEDGER, ENTRY)


@given(digest_types, st.binary(max_size=100))
def test_arbitrary_bytes_are_an_entry_or_damage(kind: DigestType, packet: bytes) -> None:
    for read in (lambda: unpack(digest_for(kind, PASSWORD), packet, LEDGER, None), lambda: packet_ids(packet)):
        with contextlib.suppress(DamagedEntry):
            read()


@pytest.mark.parametrize("kind", list(DigestType))
def test_an_entry_that_is_longer_than_its_ledger_is_not_copied(kind: DigestType) -> None:
    digest = digest_for(kind, PASSWORD)
    assert damage_of(digest, pack(digest, LEDGER, ENTRY, 2, 5, b"hello"), LEDGER, ENTRY) is None
    assert damage_of(digest, pack(digest, LEDGER, ENTRY, 2, 4, b"hello"), LEDGER, ENTRY) is not None


def test_ids_need_a_complete_header() -> None:
    with pytest.raises(DamagedEntry, match="31 bytes"):
        packet_ids(bytes(31))


@given(digest_types, ledger_ids, st.integers(-1, LEDGER_ID_MAX))
def test_a_lac_packet_is_read_back(kind: DigestType, ledger_id: LedgerId, lac: int) -> None:
    digest = digest_for(kind, PASSWORD)
    packet = pack_lac(digest, ledger_id, lac)
    assert unpack_lac(digest, packet, ledger_id) == lac


@pytest.mark.parametrize("kind", [DigestType.CRC32, DigestType.CRC32C, DigestType.HMAC])
def test_every_bit_and_byte_of_a_lac_packet_is_protected(kind: DigestType) -> None:
    digest = digest_for(kind, PASSWORD)
    packet = pack_lac(digest, LEDGER, 3)
    damaged = [flipped(packet, bit) for bit in range(len(packet) * 8)] + [packet[:size] for size in range(len(packet))]
    for bad in damaged:
        with pytest.raises(DamagedEntry):
            unpack_lac(digest, bad, LEDGER)


@pytest.mark.parametrize("kind", list(DigestType))
def test_a_lac_packet_of_another_ledger_is_damage(kind: DigestType) -> None:
    digest = digest_for(kind, PASSWORD)
    with pytest.raises(DamagedEntry, match="LAC packet of ledger 7, asked for 8"):
        unpack_lac(digest, pack_lac(digest, LEDGER, 3), LedgerId(8))
