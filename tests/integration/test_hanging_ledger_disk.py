"""A real bookie with one or three ledger directories, one of them on a disk that hangs without an error.

The test freezes a file system on a loop device, which requires root. It is skipped if none can be mounted.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from bookie.model.exit_codes import ExitCode
from bookie.server.upkeep import disk_watch
from bookie.storage.port import DISK_SILENCE_S_MAX
from bookie.wire.port import Status
from tests.deadlines import STATE_S
from tests.integration.power_cut import fragile_disk, slow_disk
from tests.integration.test_bookie_process import Machine, machine
from tests.integration.test_ledger_disks import PART, DiskBookie, disks

__all__ = ["disks", "machine"]

pytestmark = [pytest.mark.integration, pytest.mark.long]

PROBLEM = f"its disk did not answer for {DISK_SILENCE_S_MAX:g} s"


async def test_a_hanging_ledger_directory_affects_neither_the_others_nor_the_start_of_the_bookie(
    machine: Machine, disks: list[Path], tmp_path: Path
) -> None:
    with fragile_disk(tmp_path) as disk:  # it has the most space, so it takes the first logs
        bookie = DiskBookie(machine, [disks[0], disk.root, disks[2]])
        await bookie.start()
        assert await bookie.flush() == [0, 1, 0]
        with disk.frozen():
            assert await bookie.flush() == [0, 1, 1]
            assert bookie.bookie in (await machine.registrations.list()).writable
            assert [each["problem"] for each in await bookie.shown()] == [None, PROBLEM, None]
            assert await bookie.statuses() == [Status.IO_ERROR] * PART + [Status.OK] * PART
            assert await bookie.listed() == (Status.CORRUPT, PART)
            assert "stored entry" not in bookie.process.log_tail(), "entries are logged in addition to the directory"
            copy = [bookie.entry(number) for number in range(PART)]
            assert await machine.add(bookie.bookie, *copy) is Status.OK, "a copy like that of a replicator was refused"
            assert await bookie.listed() == (Status.OK, 2 * PART)
            stopping = asyncio.create_task(bookie.process.stop(STATE_S))
            await machine.until(lambda bookies: bookie.bookie not in bookies.registered)
        assert await stopping == 0  # no signal ends a thread that waits for a frozen file system

        with disk.frozen():
            await bookie.start()
            assert f"cannot lock {disk.root}/ledgers/current: {PROBLEM}" in bookie.process.log_tail()
            assert await bookie.statuses() == [Status.OK] * 2 * PART
            assert (await bookie.flush())[2] == 3
            stopping = asyncio.create_task(bookie.process.stop(STATE_S))
            await machine.until(lambda bookies: bookie.bookie not in bookies.registered)
        assert await stopping == 0

        await bookie.start()
        assert [each["problem"] for each in await bookie.shown()] == [None] * 3
        assert bookie.logs() == [0, 1, 3], "a file that was created after the deadline was not removed"
        assert await bookie.statuses() == [Status.OK] * 3 * PART
        assert await bookie.listed() == (Status.OK, 3 * PART)
        assert await bookie.process.stop(STATE_S) == 0


@pytest.mark.parametrize("is_journal", [False, True], ids=["ledger directory", "journal"])
async def test_after_a_long_stop_of_the_process_no_disk_is_reported_as_hanging(
    machine: Machine, disks: list[Path], tmp_path: Path, is_journal: bool
) -> None:
    with fragile_disk(tmp_path) as disk:
        journal = (disk.root if is_journal else machine.home) / "journal"
        second = disks[1] if is_journal else disk.root
        bookie = DiskBookie(machine, [disks[0], second, disks[2]], journal)
        await bookie.start()
        assert await bookie.flush() == [0, 1, 0]
        with disk.frozen():  # the watch has seen an operation in progress before the process is stopped
            flushing = asyncio.create_task(bookie.flush())
            await asyncio.wait([flushing], timeout=disk_watch.INTERVAL_S + 1.0)
            os.kill(bookie.process.pid, signal.SIGSTOP)  # a thread that waits for the disk stops after its answer
            await asyncio.wait([flushing], timeout=DISK_SILENCE_S_MAX + 1.0)
            assert not flushing.done()
        bookie.process.resume()
        assert await flushing == [0, 2, 0]
        assert [each["problem"] for each in await bookie.shown()] == [None] * 3
        assert await bookie.statuses() == [Status.OK] * 2 * PART
        await machine.until(lambda bookies: bookie.bookie in bookies.writable)
        assert await bookie.process.stop(STATE_S) == 0


async def test_a_bookie_whose_only_ledger_disk_hangs_becomes_read_only_exits_and_loses_nothing(
    machine: Machine, tmp_path: Path
) -> None:
    with fragile_disk(tmp_path) as device, slow_disk(tmp_path, device) as disk:
        bookie = DiskBookie(machine, [disk])
        await bookie.start()
        assert await bookie.flush() == [1]
        with device.frozen():
            flushing = asyncio.create_task(bookie.flush())
            await machine.until(lambda bookies: bookie.bookie in bookies.read_only)
            [problem] = [each["problem"] for each in await bookie.shown()]
            assert problem.startswith("a write has not ended for")
            assert await bookie.statuses() == [Status.OK] * 2 * PART
            assert await machine.add(bookie.bookie, bookie.entry(bookie.added)) is Status.READ_ONLY
            line = await bookie.process.wait_for_line(r"^bookie: a write to the disk of (\S+) has not ended", STATE_S)
            assert line[1] == str(bookie.directories[0])
            await machine.until(lambda bookies: bookie.bookie not in bookies.registered)
        assert await bookie.process.wait(STATE_S) == ExitCode.STORAGE_FAILED
        await asyncio.wait([flushing])
        assert flushing.exception() is not None
        await bookie.start()
        assert await bookie.statuses() == [Status.OK] * 2 * PART
        assert await bookie.process.stop(STATE_S) == 0


async def test_a_bookie_without_adds_whose_ledger_disk_hangs_exits(machine: Machine, tmp_path: Path) -> None:
    with fragile_disk(tmp_path) as device, slow_disk(tmp_path, device) as disk:
        bookie = DiskBookie(machine, [disk])
        await bookie.start()
        assert await bookie.flush() == [1]
        with device.frozen():
            await machine.until(lambda bookies: bookie.bookie in bookies.read_only)
            line = await bookie.process.wait_for_line(r"^bookie: a write to the disk of (\S+) has not ended", STATE_S)
            assert line[1] == str(bookie.directories[0])
        assert await bookie.process.wait(STATE_S) == ExitCode.STORAGE_FAILED
        await bookie.start()
        assert await bookie.statuses() == [Status.OK] * PART
        assert await bookie.process.stop(STATE_S) == 0


async def test_a_bookie_stopped_while_its_ledger_disk_hangs_exits(machine: Machine, tmp_path: Path) -> None:
    with fragile_disk(tmp_path) as device, slow_disk(tmp_path, device) as disk:
        bookie = DiskBookie(machine, [disk])
        await bookie.start()
        assert await bookie.flush() == [1]
        with device.frozen():
            assert await machine.add(bookie.bookie, bookie.entry(bookie.added)) is Status.OK
            bookie.added += 1
            stopping = asyncio.create_task(bookie.process.stop(STATE_S))
            await bookie.process.wait_for_line(r"^bookie: the storage has not been closed within", STATE_S)
        assert await stopping == ExitCode.STORAGE_FAILED
        await bookie.start()
        assert await bookie.statuses() == [Status.OK] * bookie.added
        assert await bookie.process.stop(STATE_S) == 0


@pytest.mark.parametrize("option", ["journal_dir", "ledger_dir"])
async def test_a_start_on_a_hanging_disk_fails_with_an_error(machine: Machine, tmp_path: Path, option: str) -> None:
    with fragile_disk(tmp_path) as disk:
        directories = {option: disk.root / "directory"}
        process, _ = await machine.ready(**directories)
        assert await process.stop(STATE_S) == 0
        with disk.frozen():
            process = machine.start(**directories)
            line = await process.wait_for_line(r"^bookie: .*", STATE_S)
            assert line[0] == f"bookie: cannot lock {disk.root}/directory/current: {PROBLEM}"
        assert await process.wait(STATE_S) == ExitCode.STORAGE_FAILED
