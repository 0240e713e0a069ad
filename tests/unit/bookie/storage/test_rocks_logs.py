"""The logs of RocksDB are read as by RocksDB itself, and records at which RocksDB would hang are found."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from bookie.storage.disks.rocks import RocksIndex
from bookie.storage.disks.rocks_logs import BLOCK_BYTES, endless_record_at, masked_crc
from bookie.storage.port import DiskError

HEADER_BYTES = 7
FULL, REUSED_FULL = 1, 5
LARGE = 100_000
"""A record that spans several blocks; its bytes cannot be compressed."""


def chunk(payload: bytes, kind: int = FULL) -> bytes:
    content = bytes([kind]) + payload
    return masked_crc(content).to_bytes(4, "little") + len(payload).to_bytes(2, "little") + content


def blocks(log: bytes) -> list[bytes]:
    return [log[start : start + BLOCK_BYTES] for start in range(0, len(log), BLOCK_BYTES)]


def chunks_of(log: bytes) -> list[int]:
    """Return the positions of the chunks in an intact log."""
    places = []
    for start in range(0, len(log), BLOCK_BYTES):
        place, end = start, min(start + BLOCK_BYTES, len(log))
        while place + HEADER_BYTES <= end and log[place + 6]:
            places.append(place)
            place += HEADER_BYTES + int.from_bytes(log[place + 4 : place + 6], "little")
    return places


async def written(home: Path) -> Path:
    """Return an index whose log has small records and one of several blocks; it is not closed, as after a kill."""
    index = await RocksIndex.open(home)
    await index.write([(b"first", b"value")])
    await index.write([(b"large", random.Random(1).randbytes(LARGE))])
    await index.write([(b"last", b"value")])
    [log] = home.glob("*.log")
    copy = log.read_bytes()
    await index.close()
    killed = home.with_name("killed.log")
    killed.write_bytes(copy)
    return killed


async def test_every_chunk_of_a_real_log_is_checked(tmp_path: Path) -> None:
    log = (await written(tmp_path / "index")).read_bytes()
    places = chunks_of(log)
    assert {log[place + 6] for place in places} >= {1, 2, 3, 4}, "the log has full, first, middle and last chunks"
    assert len(log) > LARGE
    assert endless_record_at(blocks(log)) is None
    for place in places:
        for kind in (5, 6, 7, 8, 11, 13):
            damaged = bytearray(log)
            damaged[place + 6] = kind
            assert endless_record_at(blocks(bytes(damaged))) == place


@pytest.mark.parametrize(
    "start",
    [
        chunk(b"intact") + chunk(b"payload")[:-1] + b"!",
        chunk(b"intact") + b"\0\0\0\0\xff\xff\x01",
        chunk(b"intact") + bytes(HEADER_BYTES),
    ],
    ids=["wrong checksum", "wrong length", "zeros"],
)
def test_a_record_that_ends_a_block_does_not_end_the_log(start: bytes) -> None:
    """Bytes after it in the same block are not records, whatever they contain; the next block has records again."""
    first = (start + chunk(b"not read", REUSED_FULL)).ljust(BLOCK_BYTES, b"\0")
    assert endless_record_at([first]) is None
    assert endless_record_at([first, chunk(b"next"), chunk(b"other")]) is None
    assert endless_record_at([first, chunk(b"next") + chunk(b"", REUSED_FULL)]) == BLOCK_BYTES + len(chunk(b"next"))


@pytest.mark.parametrize("name", ["MANIFEST-000005", "000004.log"])
async def test_an_index_with_such_a_record_is_refused_with_its_offset_and_the_remedy(tmp_path: Path, name: str) -> None:
    await (await RocksIndex.open(tmp_path)).close()
    with (tmp_path / name).open("ab") as file:
        size = file.tell()
        file.write(chunk(b"more") + chunk(b"", REUSED_FULL))
    with pytest.raises(DiskError, match=rf"{name} at offset {size + len(chunk(b'more'))} .*rebuild-index"):
        await RocksIndex.open(tmp_path)
