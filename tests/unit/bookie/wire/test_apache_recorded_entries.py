"""Our encoding of entries compared with entries that Apache's client stored on Apache's bookies."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from bookie.model.digest import digest_for
from bookie.model.ids import EntryId, LedgerId
from bookie.model.metadata import DigestType
from bookie.model.packet import DamagedEntry, pack, unpack
from tests.worlds.recorded_apache import rows

TYPES = {"CRC32": DigestType.CRC32, "MAC": DigestType.HMAC, "CRC32C": DigestType.CRC32C, "DUMMY": DigestType.DUMMY}
LEDGERS = [pytest.param(row, id=f"{row['digest']}-{row['client']}") for row in rows("entries")]


def content(row: dict[str, Any], entry_id: int) -> bytes:
    size = row["sizes"][entry_id % len(row["sizes"])]
    blocks = (hashlib.sha256(f"{row['seed']}/{entry_id}/{block}".encode()).digest() for block in range(-(-size // 32)))
    return b"".join(blocks)[:size]


@pytest.mark.parametrize("row", LEDGERS)
def test_an_entry_is_read_and_packed_again_byte_for_byte(row: dict[str, Any]) -> None:
    digest = digest_for(TYPES[row["digest"]], bytes.fromhex(row["password"]))
    ledger_id = LedgerId(row["ledger"])
    length = 0
    for number, text in enumerate(row["stored"]):
        stored = bytes.fromhex(text)
        entry = unpack(digest, stored, ledger_id, EntryId(number))
        length += len(entry.payload)
        assert entry.payload == content(row, number)
        assert entry.length == length
        assert -1 <= entry.last_add_confirmed < number
        assert pack(digest, ledger_id, EntryId(number), entry.last_add_confirmed, length, entry.payload) == stored


@pytest.mark.parametrize("row", [row for row in LEDGERS if "DUMMY" not in str(row.id)])
def test_a_changed_bit_is_noticed(row: dict[str, Any]) -> None:
    digest = digest_for(TYPES[row["digest"]], bytes.fromhex(row["password"]))
    stored = bytearray.fromhex(row["stored"][2])
    stored[-1] ^= 1
    with pytest.raises(DamagedEntry):
        unpack(digest, bytes(stored), LedgerId(row["ledger"]), EntryId(2))


def test_a_wrong_password_cannot_read_an_hmac_ledger() -> None:
    row = next(row for row in rows("entries") if row["digest"] == "MAC")
    digest = digest_for(DigestType.HMAC, b"guess")
    with pytest.raises(DamagedEntry):
        unpack(digest, bytes.fromhex(row["stored"][0]), LedgerId(row["ledger"]), EntryId(0))
