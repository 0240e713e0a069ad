"""The vectors in docs/formats.md#master-key and #lac-packets, and both checksums defined bit by bit."""

from __future__ import annotations

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.model.digest import digest_for, master_key
from bookie.model.ids import EntryId, LedgerId
from bookie.model.metadata import DigestType
from bookie.model.packet import pack, pack_lac

HEADER_7_0 = "00000000000000070000000000000000ffffffffffffffff0000000000000005"
HELLO = "68656c6c6f"


@pytest.mark.parametrize(
    ("password", "key"),
    [
        (b"", "850bf1071c5e3d8c24235676f8816ae0cbe2f14f"),
        (b"foobar", "951273d194a6b67be531d77ae6007211f49a5c52"),
    ],
)
def test_the_master_key_is_that_of_apache(password: bytes, key: str) -> None:
    assert master_key(password).hex() == key


@pytest.mark.parametrize(
    ("digest_type", "digest"),
    [
        (DigestType.CRC32, "00000000b9e72242"),
        (DigestType.CRC32C, "9e3e717b"),
        (DigestType.HMAC, "0e417fbc105c603c99c7b7b3c07ad83f114f15fd"),
        (DigestType.DUMMY, ""),
    ],
)
def test_an_entry_is_packed_as_apache_packs_it(digest_type: DigestType, digest: str) -> None:
    packet = pack(digest_for(digest_type, b"foobar"), LedgerId(7), EntryId(0), -1, 5, b"hello")
    assert packet.hex() == HEADER_7_0 + digest + HELLO


@pytest.mark.parametrize(
    ("digest_type", "digest"),
    [
        (DigestType.CRC32, "0000000011d37726"),
        (DigestType.CRC32C, "9640a704"),
        (DigestType.HMAC, "a2d6bc8fbbc77f73f00fc0a988eb6a6ce060d139"),
        (DigestType.DUMMY, ""),
    ],
)
def test_a_lac_packet_is_packed_as_apache_packs_it(digest_type: DigestType, digest: str) -> None:
    packet = pack_lac(digest_for(digest_type, b"foobar"), LedgerId(7), 3)
    assert packet.hex() == "00000000000000070000000000000003" + digest


@pytest.mark.parametrize("digest_type", list(DigestType))
def test_the_declared_size_is_that_of_the_digest(digest_type: DigestType) -> None:
    digest = digest_for(digest_type, b"")
    assert len(digest.compute(b"header", b"payload")) == digest.size


def slow_crc(polynomial: int, data: bytes) -> int:
    """Compute a reflected 32-bit CRC bit by bit; the initial value and the final XOR are all ones."""
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = (register >> 1) ^ (polynomial if register & 1 else 0)
    return register ^ 0xFFFFFFFF


def test_the_slow_reference_checksums_match_published_values() -> None:
    assert slow_crc(0xEDB88320, b"123456789") == 0xCBF43926
    assert slow_crc(0x82F63B78, b"123456789") == 0xE3069283


@given(st.binary(max_size=40), st.binary(max_size=40), st.binary(max_size=10))
def test_digests_cover_header_and_payload_as_one(header: bytes, payload: bytes, password: bytes) -> None:
    whole = header + payload
    hmac_key = hashlib.sha1(b"mac" + password).digest()
    expected = {
        DigestType.CRC32: bytes(4) + slow_crc(0xEDB88320, whole).to_bytes(4, "big"),
        DigestType.CRC32C: slow_crc(0x82F63B78, whole).to_bytes(4, "big"),
        DigestType.HMAC: hmac.digest(hmac_key, whole, "sha1"),
        DigestType.DUMMY: b"",
    }
    assert {kind: digest_for(kind, password).compute(header, payload) for kind in DigestType} == expected


def test_only_the_hmac_depends_on_the_password() -> None:
    sensitive = {
        kind
        for kind in DigestType
        if digest_for(kind, b"a").compute(b"x", b"y") != digest_for(kind, b"b").compute(b"x", b"y")
    }
    assert sensitive == {DigestType.HMAC}


def test_the_hmac_key_is_that_of_the_reference() -> None:
    key = bytes.fromhex("4070b730deae6ab715502526e86bffdd751a86fb")
    assert digest_for(DigestType.HMAC, b"foobar").compute(b"", b"data") == hmac.digest(key, b"data", "sha1")


def test_a_digest_never_prints_its_key() -> None:
    assert "compute" not in repr(digest_for(DigestType.HMAC, b"secret"))
