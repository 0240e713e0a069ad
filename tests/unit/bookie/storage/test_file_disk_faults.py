"""The file adapter and the faults of operating systems: short writes, full devices, failed syncs, a second process."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import stat
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bookie.storage.disks import files
from bookie.storage.disks.directory_lock import DirectoryInUseError, lock_directory
from bookie.storage.disks.files import FileDisk
from bookie.storage.disks.rocks import RocksIndex
from bookie.storage.port import DiskError, DiskFullError, StalledDiskError
from tests.deadlines import PROGRAM_S, STATE_S


@pytest.fixture
async def disk(tmp_path: Path) -> AsyncIterator[FileDisk]:
    disk = await FileDisk.acquire(tmp_path)
    await disk.make_directory("d")
    yield disk
    await disk.close()


def run(script: str, root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script, str(root)], capture_output=True, text=True, check=False)


async def test_short_writes_are_continued(disk: FileDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, pieces, offset: real(fd, [bytes(b"".join(pieces))[:3]], offset))
    file = await disk.create("d/a")
    assert await file.append([b"0123456", b"", b"789", b"ab"]) == 12
    assert await file.read([(0, 20)]) == [b"0123456789ab"]
    await file.close()


def open_descriptors(path: Path) -> int:
    """Count the descriptors of this process for a file."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found += os.readlink(f"/proc/self/fd/{name}") == str(path)
    return found


async def test_a_directory_whose_disk_cannot_be_queried_is_a_disk_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.is_dir

    def fail(path: Path) -> bool:
        if path == tmp_path / "d":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(path)

    monkeypatch.setattr(Path, "is_dir", fail)
    for may_be_read_only in (False, True):
        with pytest.raises(DiskError, match=r"cannot stat .*see the log of the kernel"):
            await FileDisk.acquire(tmp_path / "d", may_be_read_only=may_be_read_only)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="this system does not list open files")
async def test_a_file_whose_size_cannot_be_read_is_closed(
    disk: FileDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int) -> os.stat_result:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    (tmp_path / "d/a").write_bytes(b"x")
    with monkeypatch.context() as patched:
        patched.setattr(os, "fstat", fail)
        with pytest.raises(DiskError, match="cannot stat"):
            await disk.open("d/a")
    assert open_descriptors(tmp_path / "d/a") == 0


async def test_an_index_whose_directory_cannot_be_listed_is_a_disk_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await (await RocksIndex.open(tmp_path / "index")).close()
    real = os.listdir

    def fail(path: Path) -> list[str]:
        if path == tmp_path / "index":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(path)

    monkeypatch.setattr(os, "listdir", fail)
    with pytest.raises(DiskError, match="IO error"):
        await RocksIndex.open(tmp_path / "index")


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="this system does not list open files")
async def test_a_file_whose_opening_was_cancelled_is_closed(
    disk: FileDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, real, is_begun = tmp_path / "d/a", os.open, threading.Event()
    os.mkfifo(path)  # opening it waits for a writer, as that of a file waits for a slow disk

    def begun(opened: Path, *arguments: Any) -> int:
        if opened == path:
            is_begun.set()
        return real(opened, *arguments)

    monkeypatch.setattr(os, "open", begun)
    opening = asyncio.create_task(disk.open("d/a"))
    assert await asyncio.to_thread(is_begun.wait, STATE_S)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    writer = await asyncio.to_thread(real, path, os.O_WRONLY)
    await disk.close()
    assert open_descriptors(path) == 1, "only the writer's own"
    os.close(writer)


async def test_space_is_reserved_before_it_is_used(disk: FileDisk, tmp_path: Path) -> None:
    file, path = await disk.create("d/a"), tmp_path / "d/a"
    await file.append_and_sync([b"x" * 10])
    await file.reserve(1 << 20)
    assert path.stat().st_size == 10 + (1 << 20)
    for _ in range(3):
        await file.append_and_sync([b"x" * 1000])
        assert path.stat().st_size == 10 + (1 << 20)
    if files._fallocate is not None:  # otherwise the C library has no fallocate
        assert path.stat().st_blocks * 512 >= 1 << 20
    await file.reserve(0)
    assert path.stat().st_size == 3010
    assert path.stat().st_blocks * 512 < 1 << 20
    await file.close()


async def test_no_space_is_reserved_on_a_nearly_full_disk(
    disk: FileDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = list(os.statvfs(tmp_path))
    block, available = 1, 4  # f_frsize, f_bavail
    found[block], found[available] = 4096, 64 * 256 - 1
    monkeypatch.setattr(os, "fstatvfs", lambda descriptor: os.statvfs_result(found))
    file = await disk.create("d/a")
    await file.reserve(1 << 20)
    assert (tmp_path / "d/a").stat().st_size == 0
    found[available] += 1
    await file.reserve(1 << 20)
    assert (tmp_path / "d/a").stat().st_size == 1 << 20
    await file.close()


@pytest.mark.parametrize("is_there", [False, True])
async def test_appends_work_without_reservation(
    disk: FileDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    monkeypatch.setattr(files, "_fallocate", (lambda *arguments: -1) if is_there else None)
    file = await disk.create("d/a")
    await file.reserve(1 << 20)
    assert await file.append_and_sync([b"abc"]) == 3
    assert (tmp_path / "d/a").stat().st_size == 3
    await file.reserve(0)
    await file.close()
    assert (tmp_path / "d/a").read_bytes() == b"abc"


async def test_nothing_is_reserved_or_freed_after_a_failed_write(
    disk: FileDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, "input/output error")

    file = await disk.create("d/a")
    await file.reserve(4096)
    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(DiskError, match="sync"):
        await file.append_and_sync([b"abc"])
    await file.reserve(0)
    await file.reserve(1 << 20)
    assert (tmp_path / "d/a").stat().st_size == 4096
    await file.close()


async def test_a_directory_on_a_disk_that_does_not_answer_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()

    def hang(root: Path, *, may_be_read_only: bool) -> int:
        answers.wait()
        return lock_directory(root, may_be_read_only=may_be_read_only)

    monkeypatch.setattr(files, "lock_directory", hang)
    with pytest.raises(StalledDiskError, match=r"cannot lock .*: its disk did not answer for 0.02 s"):
        await FileDisk.acquire(tmp_path, silent_s=0.02)
    assert files.is_thread_waiting()
    answers.set()
    for thread in threading.enumerate():
        if thread.name.startswith(f"disk-{tmp_path.name}"):
            thread.join()
    assert not files.is_thread_waiting()


async def test_closing_does_not_wait_for_a_disk_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answers = threading.Event()
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: answers.wait())
    disk = await FileDisk.acquire(tmp_path)
    file = await disk.create("a")
    syncing = asyncio.create_task(file.sync())
    await asyncio.sleep(0)
    monkeypatch.setattr(files, "_CLOSE_S", 0.02)
    await disk.close()
    assert [record.getMessage() for record in caplog.records] == ["disk does not answer, its directory stays locked"]
    assert files.is_thread_waiting()
    with pytest.raises(DirectoryInUseError):
        await FileDisk.acquire(tmp_path)
    answers.set()
    await syncing
    monkeypatch.setattr(files, "_CLOSE_S", PROGRAM_S)
    await disk.close()
    await (await FileDisk.acquire(tmp_path)).close()
    assert not files.is_thread_waiting()


async def test_a_file_is_replaced_after_the_replacement_of_a_cancelled_caller(
    disk: FileDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, is_begun, may_end, is_replaced = os.fsync, threading.Event(), threading.Event(), threading.Event()
    files_synced = 0

    def fsync(descriptor: int) -> None:
        nonlocal files_synced
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            is_replaced.set()
            return
        files_synced += 1
        if files_synced == 1:
            is_begun.set()
            assert may_end.wait(STATE_S)
        else:
            may_end.set()
            assert is_replaced.wait(STATE_S)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    cancelled = asyncio.create_task(disk.replace("d/a", b"first"))
    assert await asyncio.to_thread(is_begun.wait, STATE_S)
    cancelled.cancel()
    await asyncio.wait([cancelled])
    second = asyncio.create_task(disk.replace("d/a", b"second"))
    for _ in range(20):
        await asyncio.to_thread(lambda: None)
    may_end.set()
    await second
    assert (tmp_path / "d/a").read_bytes() == b"second"


async def test_a_write_does_not_wait_for_reads_of_bad_sectors(disk: FileDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the write would count as stalled, and the bookie would end because of a part of its disk."""
    real, may_end = os.pread, threading.Event()

    def pread(descriptor: int, size: int, offset: int) -> bytes:
        assert may_end.wait(STATE_S)
        return real(descriptor, size, offset)

    written = await disk.create("d/a")
    await written.append([b"old"])
    monkeypatch.setattr(os, "pread", pread)
    read = [await disk.open("d/a") for _ in range(32)]
    reads = [asyncio.create_task(file.read([(0, 3)])) for file in read]
    assert await written.append_and_sync([b"new"]) == 6
    await disk.replace("d/b", b"b")
    await disk.sync_directory("d")
    new = await disk.create("d/c")
    assert await disk.names("d") == ["a", "b", "c"], "a probe after a failed read needs the names"
    may_end.set()
    assert await asyncio.gather(*reads) == [[b"old"]] * 32
    for file in (*read, written, new):
        await file.close()


async def test_a_failed_close_is_a_disk_error(disk: FileDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.close

    def fail(descriptor: int) -> None:  # network file systems do this
        real(descriptor)
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    file = await disk.create("d/a")
    with monkeypatch.context() as patched:
        patched.setattr(os, "close", fail)
        with pytest.raises(DiskFullError, match=r"cannot close .*d/a"):
            await file.close()
    await file.close()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE])
async def test_no_space_has_its_own_error(disk: FileDisk, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def full(*arguments: object) -> int:
        raise OSError(code, os.strerror(code))

    file = await disk.create("d/a")
    monkeypatch.setattr(os, "pwritev", full)
    with pytest.raises(DiskFullError, match=r"cannot append to .*d/a: .* \((free space|allow).*\)"):
        await file.append([b"x"])
    await file.close()
    monkeypatch.setattr(os, "writev", full)
    with pytest.raises(DiskFullError, match=r"cannot replace .* \((free space|allow).*\)"):
        await disk.replace("d/b", b"x")
    assert await disk.names("d") == ["a"]


async def test_without_inodes_there_is_no_free_space(disk: FileDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.statvfs(".")

    def statvfs(files: int, free: int) -> Callable[[object], os.statvfs_result]:
        fields = list(real)
        fields[5], fields[6], fields[7] = files, free, free
        return lambda _: os.statvfs_result(fields)

    monkeypatch.setattr(os, "statvfs", statvfs(100_000, 10))
    assert (await disk.space())[1] == 0
    monkeypatch.setattr(os, "statvfs", statvfs(100_000, 1000))
    assert (await disk.space())[1] == real.f_bavail * real.f_frsize
    monkeypatch.setattr(os, "statvfs", statvfs(0, 0))  # btrfs reports this
    assert (await disk.space())[1] == real.f_bavail * real.f_frsize


async def test_too_many_open_files_are_not_a_disk_failure(tmp_path: Path) -> None:
    script = (
        "import asyncio, os, resource, sys\n"
        "from pathlib import Path\n"
        "from bookie.storage.disks.files import FileDisk\n"
        "from bookie.storage.port import DiskFullError\n"
        "async def main():\n"
        "    disk = await FileDisk.acquire(Path(sys.argv[1]))\n"
        "    await (await disk.create('a')).close()\n"
        "    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 100))\n"
        "    for work in (lambda: disk.create('b'), lambda: disk.open('a'), lambda: disk.replace('c', b'x'),\n"
        "                 lambda: disk.names(''), lambda: disk.sync_directory('')):\n"
        "        try:\n"
        "            await work()\n"
        "        except DiskFullError:\n"
        "            print('full')\n"
        "    resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))\n"
        "    print('b' in await disk.names(''))\n"
        "    sys.stdout.flush()\n"
        "    os._exit(0)\n"
        "asyncio.run(main())\n"
    )
    assert run(script, tmp_path).stdout.split() == ["full"] * 5 + ["False"]


def test_short_file_at_the_size_limit_is_an_error_with_its_true_size(tmp_path: Path) -> None:
    file_size_bytes = 4 << 20
    script = (
        "import asyncio, resource, signal, sys\n"
        "from pathlib import Path\n"
        "from bookie.storage.disks.files import FileDisk\n"
        "from bookie.storage.port import DiskError\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({file_size_bytes}, {file_size_bytes}))\n"
        "async def main():\n"
        "    disk = await FileDisk.acquire(Path(sys.argv[1]))\n"
        "    file = await disk.create('a')\n"
        "    try:\n"
        f"        await file.append([b'x' * {file_size_bytes + 1}])\n"
        "    except DiskError as error:\n"
        "        print(type(error).__name__, (await file.size()))\n"
        "asyncio.run(main())\n"
    )
    assert run(script, tmp_path).stdout.split() == ["DiskError", str(file_size_bytes)]


async def test_file_is_never_synced_again_after_a_failed_sync(disk: FileDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def failing(descriptor: int) -> None:
        calls.append(descriptor)
        raise OSError(errno.EIO, "Input/output error")

    file = await disk.create("d/a")
    await file.append([b"x"])
    monkeypatch.setattr(os, "fdatasync", failing)
    with pytest.raises(DiskError, match="cannot sync"):
        await file.sync()
    for attempt in (file.sync(), file.append([b"y"]), file.append_and_sync([b"y"])):
        with pytest.raises(DiskError, match="an earlier write or sync of it failed"):
            await attempt
    assert len(calls) == 1
    assert await file.read([(0, 9)]) == [b"x"]
    await file.close()


async def test_file_is_never_written_again_after_a_failed_write(
    disk: FileDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*arguments: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    file = await disk.create("d/a")
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", failing)
        with pytest.raises(DiskError):
            await file.append([b"x"])
    with pytest.raises(DiskError, match="an earlier write"):
        await file.append([b"x"])
    await file.close()


async def test_unreadable_directory_is_an_error_not_empty(disk: FileDisk) -> None:
    await (await disk.create("d/file")).close()
    with pytest.raises(DiskError, match="cannot list"):
        await disk.names("d/file")


async def test_second_user_of_a_directory_is_refused_until_the_first_is_done(tmp_path: Path) -> None:
    first = await FileDisk.acquire(tmp_path)
    with pytest.raises(DirectoryInUseError, match=rf"{tmp_path} is in use by process {os.getpid()}"):
        await FileDisk.acquire(tmp_path)
    await first.close()
    second = await FileDisk.acquire(tmp_path)
    await second.close()


async def test_a_directory_on_a_read_only_file_system_can_be_read_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = await FileDisk.acquire(tmp_path / "disk")
    await disk.replace("file", b"content")
    await disk.close()
    opened, synced = os.open, list[int]()

    def refuse_writes(path: Path, flags: int, mode: int = 0o777) -> int:
        if flags & (os.O_RDWR | os.O_WRONLY | os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return opened(path, flags, mode)

    monkeypatch.setattr(os, "open", refuse_writes)
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_RDONLY))
    monkeypatch.setattr(os, "fsync", synced.append)
    with pytest.raises(DiskError, match=r"cannot lock .*mount its file system for writing"):
        await FileDisk.acquire(tmp_path / "disk")
    synced.clear()
    disk = await FileDisk.acquire(tmp_path / "disk", may_be_read_only=True)
    assert not synced, "a sync fails after an error made the file system read-only"
    file = await disk.open("file")
    assert await file.read([(0, 100)]) == [b"content"]
    await file.close()
    with pytest.raises(DiskError, match="mount its file system for writing"):
        await disk.create("other")
    with pytest.raises(DirectoryInUseError):
        await FileDisk.acquire(tmp_path / "disk", may_be_read_only=True)
    await disk.close()


async def test_another_process_is_refused(tmp_path: Path) -> None:
    first = await FileDisk.acquire(tmp_path)
    script = (
        "import asyncio, sys\nfrom pathlib import Path\nfrom bookie.storage.disks.files import FileDisk\n"
        "asyncio.run(FileDisk.acquire(Path(sys.argv[1])))"
    )
    done = await asyncio.to_thread(run, script, tmp_path)
    assert done.returncode != 0
    assert f"DirectoryInUseError: {tmp_path} is in use by process {os.getpid()}" in done.stderr
    await first.close()


async def test_closed_disk_refuses_requests_and_can_be_closed_again(disk: FileDisk) -> None:
    await disk.close()
    await disk.close()
    with pytest.raises(DiskError, match="closed"):
        await disk.names("d")


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Yield the list of synced directories."""
    found: list[Path] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        real(descriptor)
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if path.is_dir():
            found.append(path)

    monkeypatch.setattr(os, "fsync", fsync)
    return found


async def test_a_new_root_and_its_parents_are_durable_before_it_is_used(tmp_path: Path, synced: list[Path]) -> None:
    disk = await FileDisk.acquire(tmp_path / "a" / "b" / "current")
    assert {tmp_path, tmp_path / "a", tmp_path / "a" / "b"} <= set(synced)
    await disk.close()


async def test_a_root_whose_first_process_died_at_its_creation_is_durable_after_the_next_start(
    tmp_path: Path, synced: list[Path]
) -> None:
    (tmp_path / "current").mkdir()
    disk = await FileDisk.acquire(tmp_path / "current")
    assert tmp_path in synced
    await disk.close()


async def test_a_new_index_is_durable_before_it_is_used(tmp_path: Path, synced: list[Path]) -> None:
    index = await RocksIndex.open(tmp_path / "current" / "index")
    assert {tmp_path, tmp_path / "current"} <= set(synced)
    await index.close()
