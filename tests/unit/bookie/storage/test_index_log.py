"""The log of the index is compressed, a log of an earlier release is readable, and a cut log loses only its end."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

from rocksdict import Options, Rdict, WriteBatch

from bookie.storage.disks.index_format import entry_range, pack_entry_key, pack_location
from bookie.storage.disks.rocks import RocksIndex

ENTRIES = 4000
FIRST, END = entry_range(1)


def pairs(first: int = 0, count: int = ENTRIES) -> list[tuple[bytes, bytes]]:
    rng = random.Random(first)
    places = ((number, 28 + 140 * number, rng.getrandbits(32)) for number in range(first, first + count))
    return [(pack_entry_key(1, number), pack_location(3, offset, 132, crc)) for number, offset, crc in places]


def log_bytes(path: Path) -> int:
    return sum(log.stat().st_size for log in path.glob("*.log"))


async def killed(path: Path, copy: Path) -> Path:
    """Copy the files of an index at ``path`` that is in use, as a killed process would leave them."""
    shutil.copytree(path, copy, ignore=shutil.ignore_patterns("LOCK"))
    return copy


async def test_the_log_is_compressed_to_a_quarter(tmp_path: Path) -> None:
    index = await RocksIndex.open(tmp_path / "index")
    await index.write(pairs())
    assert 4 * ENTRIES < log_bytes(tmp_path / "index") < 11 * ENTRIES  # without compression, each takes 43 bytes
    copy = await killed(tmp_path / "index", tmp_path / "copy")
    await index.close()
    index = await RocksIndex.open(copy)
    assert await index.range(FIRST, END, 2 * ENTRIES) == pairs()
    await index.close()


async def test_a_log_of_an_earlier_release_is_read_and_followed_by_a_compressed_one(tmp_path: Path) -> None:
    options = Options(raw_mode=True)
    database = Rdict(str(tmp_path / "index"), options, {"default": options})
    batch = WriteBatch(raw_mode=True)
    for key, value in pairs():
        batch.put(key, value)
    database.write(batch)
    database.flush_wal(True)
    copy = await killed(tmp_path / "index", tmp_path / "copy")
    database.close()
    assert log_bytes(copy) > 40 * ENTRIES
    index = await RocksIndex.open(copy)
    assert await index.range(FIRST, END, 2 * ENTRIES) == pairs()
    await index.write(pairs(ENTRIES, 10))
    again = await killed(copy, tmp_path / "again")
    await index.close()
    index = await RocksIndex.open(again)
    assert await index.range(FIRST, END, 2 * ENTRIES) == pairs() + pairs(ENTRIES, 10)
    await index.close()


async def test_a_log_truncated_anywhere_loses_only_complete_writes_at_its_end(tmp_path: Path) -> None:
    index = await RocksIndex.open(tmp_path / "index")
    [log] = (tmp_path / "index").glob("*.log")
    ends = [log.stat().st_size]
    for first in range(0, 300, 100):
        await index.write(pairs(first, 100))
        ends.append(log.stat().st_size)
    copy = await killed(tmp_path / "index", tmp_path / "copy")
    await index.close()
    data = (copy / log.name).read_bytes()
    sizes = [*ends, *random.Random(1).sample(range(len(data)), 5), len(data) - 1]
    for number, size in enumerate(sizes):
        cut = await killed(copy, tmp_path / f"cut-{number}")
        (cut / log.name).write_bytes(data[:size])
        index = await RocksIndex.open(cut)
        whole = sum(end <= size for end in ends) - 1
        assert await index.range(FIRST, END, 1000) == [
            pair for first in range(0, 100 * max(whole, 0), 100) for pair in pairs(first, 100)
        ], f"cut at {size} of {ends}"
        await index.close()
