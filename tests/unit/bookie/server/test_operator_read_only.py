"""The record of the read-only mode: both changes are durable, and an unreadable record requests the mode."""

from __future__ import annotations

import random

import pytest

from bookie.server.upkeep.operator_read_only import (
    READ_ONLY_FILE,
    OperatorReadOnly,
    ReadOnlyRequest,
    read_recorded_request,
    write_recorded_request,
)
from bookie.storage.disks.memory import MemoryDisk, Operation, yield_control
from bookie.storage.port import DiskError, DiskFullError, StalledDiskError

REQUEST = ReadOnlyRequest("ops", 1)


@pytest.mark.parametrize("seed", range(10))
async def test_a_request_and_its_end_survive_a_power_loss(seed: int) -> None:
    disk, rng = MemoryDisk(), random.Random(seed)
    await write_recorded_request(disk, REQUEST)
    disk = disk.crash(rng)
    assert await read_recorded_request(disk) == REQUEST
    await write_recorded_request(disk, None)
    assert await read_recorded_request(disk.crash(rng)) is None


async def test_a_damaged_record_counts_as_a_request_until_it_is_withdrawn() -> None:
    disk = MemoryDisk()
    await disk.replace(READ_ONLY_FILE, b"\xff")
    assert await read_recorded_request(disk) == ReadOnlyRequest()
    await write_recorded_request(disk, None)
    assert await read_recorded_request(disk) is None


async def test_a_record_on_a_bad_sector_counts_as_a_request_until_it_is_withdrawn() -> None:
    disk = MemoryDisk()
    await write_recorded_request(disk, REQUEST)
    disk.bad_sectors = {(READ_ONLY_FILE, 0)}
    assert await read_recorded_request(disk) == ReadOnlyRequest()
    await write_recorded_request(disk, None)
    assert await read_recorded_request(disk) is None


@pytest.mark.parametrize("error", [DiskFullError("too many open files"), StalledDiskError("no answer")])
async def test_a_disk_that_may_answer_later_is_not_taken_for_a_request(error: DiskError) -> None:
    disk = MemoryDisk()

    async def failing(operation: Operation, path: str) -> None:
        raise error

    disk.before = failing
    with pytest.raises(type(error)):
        await read_recorded_request(disk)


@pytest.mark.parametrize(("before", "after"), [(None, REQUEST), (REQUEST, None)])
async def test_a_request_that_cannot_be_recorded_changes_nothing(
    before: ReadOnlyRequest | None, after: ReadOnlyRequest | None
) -> None:
    disk = MemoryDisk()
    await write_recorded_request(disk, before)
    mode = OperatorReadOnly(disk, before)

    async def failing(operation: Operation, path: str) -> None:
        raise DiskError("input/output error")

    disk.before = failing
    with pytest.raises(DiskError):
        await mode.set(after)
    disk.before = yield_control
    assert (mode.wish, await read_recorded_request(disk)) == (before, before)
