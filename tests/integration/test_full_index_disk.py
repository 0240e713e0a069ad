"""The index of a bookie on a file system that is full while the index is opened.

The file system is a small tmpfs, which root may mount. The tests are skipped if it cannot be mounted.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bookie.storage.disks.index_format import pack_entry_key, pack_location
from bookie.storage.disks.rocks import RocksIndex
from bookie.storage.port import DiskFullError
from tests.deadlines import PROGRAM_S

pytestmark = pytest.mark.integration

DISK_MIB = 24
PAGE = 4000
PAGES = 50
"""Pages of entries, whose log takes about 2 MB."""
SLACK_BYTES = 1 << 16


class SmallDisk:
    """A mounted file system with a file that occupies all space not meant for the index."""

    def __init__(self, path: Path) -> None:
        self.index = path / "index"
        self._ballast = path / "ballast"
        self._path = path

    def leave(self, size: int) -> None:
        """Leave ``size`` bytes free."""
        with self._ballast.open("ab") as file:
            wanted = file.tell() + self._free() - size
            if wanted < file.tell():
                file.truncate(max(wanted, 0))
            else:
                file.write(bytes(wanted - file.tell()))

    def log_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.index.glob("*.log"))

    def _free(self) -> int:
        found = os.statvfs(self._path)
        return found.f_bavail * found.f_frsize


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    path = tmp_path / "disk"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(path)]
    mounted = subprocess.run(command, capture_output=True, text=True, timeout=PROGRAM_S, check=False)
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted: {mounted.stderr.strip()}")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "--lazy", str(path)], timeout=PROGRAM_S, check=True)


def page(number: int) -> list[tuple[bytes, bytes]]:
    ids, checksums = range(number * PAGE, (number + 1) * PAGE), random.Random(number)
    return [(pack_entry_key(7, each), pack_location(1, each * 900, 900, checksums.getrandbits(32))) for each in ids]


async def filled(disk: SmallDisk) -> tuple[RocksIndex, list[tuple[bytes, bytes]]]:
    """Return an index that could not write its last page, and what it wrote before."""
    index = await RocksIndex.open(disk.index)
    written: list[tuple[bytes, bytes]] = []
    for number in range(2 * PAGES):
        if number == PAGES:
            disk.leave(SLACK_BYTES)
        try:
            await index.write(page(number))
        except DiskFullError:
            return index, written
        written += page(number)
    pytest.fail("the disk never became full")


async def test_an_index_whose_reopening_finds_no_space_is_reopened_later(
    disk: SmallDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, written = await filled(disk)
    with monkeypatch.context() as patched:
        patched.setattr(RocksIndex, "_missing_room", lambda _: "")  # the disk fills up only after this check
        with pytest.raises(DiskFullError, match="cannot open the index"):
            await index.reopen()
    assert await index.get_many([written[0][0]]) == [written[0][1]], "the index cannot be read"
    with pytest.raises(DiskFullError, match="Free space"):
        await index.write(written[:1])
    with pytest.raises(DiskFullError):
        await index.reopen()
    disk.leave(DISK_MIB << 20)
    await index.reopen()
    assert (await index.range(b"", b"\xff", 1 << 30))[: len(written)] == written
    await index.write([(b"\xffagain", b"x")])
    await index.close()


async def test_an_index_is_reopened_only_with_enough_space_for_its_tables(disk: SmallDisk) -> None:
    index, written = await filled(disk)
    disk.leave(disk.log_bytes() + (1 << 20) + SLACK_BYTES)
    with pytest.raises(DiskFullError, match="bytes of free space"):
        await index.reopen()
    assert await index.get_many([written[0][0]]) == [written[0][1]], "the open database cannot be read"
    disk.leave(2 * disk.log_bytes() + (1 << 20) + SLACK_BYTES)
    await index.reopen()
    assert (await index.range(b"", b"\xff", 1 << 30))[: len(written)] == written
    await index.close()


async def test_an_index_on_a_full_disk_is_opened_for_reading(disk: SmallDisk) -> None:
    first = await RocksIndex.open(disk.index)
    for number in range(PAGES):
        await first.write(page(number))
    killed = disk.index.with_name("killed")
    shutil.copytree(disk.index, killed)  # the state after a kill: the entries are only in the log
    await first.close()
    shutil.rmtree(disk.index)
    disk.leave(0)
    index = await RocksIndex.open(killed)
    assert (await index.range(b"", b"\xff", 1 << 30))[:PAGE] == page(0)
    for attempt in (index.write(page(0)), index.reopen()):
        with pytest.raises(DiskFullError) as refused:
            await attempt
        assert "rebuild-index" not in str(refused.value)
    disk.leave(DISK_MIB << 20)
    await index.reopen()
    await index.write([(b"\xffagain", b"x")])
    assert await index.get_many([b"\xffagain", page(PAGES - 1)[-1][0]]) == [b"x", page(PAGES - 1)[-1][1]]
    await index.close()


async def test_an_index_for_whose_creation_there_is_no_space_asks_for_space(disk: SmallDisk) -> None:
    disk.leave(0)
    with pytest.raises(DiskFullError, match=r"No space left on device.*Free space") as refused:
        await RocksIndex.open(disk.index)
    assert "rebuild-index" not in str(refused.value)
