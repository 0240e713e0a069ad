"""Power loss on the in-memory disk: synced data survives; other data may be in any state that a disk could leave."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from bookie.storage.disks.memory import MemoryDisk, MemoryIndex, Operation
from bookie.storage.port import DiskError, DiskFullError

SEEDS = range(200)


def crashes(disk: MemoryDisk) -> Iterator[MemoryDisk]:
    return (disk.crash(random.Random(seed)) for seed in SEEDS)


async def disk_with_file(*, is_name_durable: bool = True) -> MemoryDisk:
    disk = MemoryDisk()
    await disk.make_directory("d")
    file = await disk.create("d/a")
    await file.append([b"durable."])
    await file.sync()
    if is_name_durable:
        await disk.sync_directory("d")
    await file.append([b"first."])
    await file.append([b"second."])
    return disk


async def test_synced_bytes_always_survive() -> None:
    disk = await disk_with_file()
    assert all(crashed.content("d/a").startswith(b"durable.") for crashed in crashes(disk))


async def test_unsynced_appends_are_kept_lost_torn_and_reordered() -> None:
    found = {crashed.content("d/a") for crashed in crashes(await disk_with_file())}
    assert b"durable." in found
    assert b"durable.first." in found
    assert b"durable.first.second." in found
    assert any(content.startswith(b"durable.fi") and len(content) < len(b"durable.first.") for content in found)
    assert b"durable." + bytes(6) + b"second." in found


async def test_an_unsynced_append_may_have_holes_if_wanted() -> None:
    disk = await disk_with_file()
    assert not any(b"f\0" in crashed.content("d/a") for crashed in crashes(disk) if b"t." in crashed.content("d/a"))
    disk.has_holes = True
    found = {crashed.content("d/a") for crashed in crashes(disk)}
    assert any(content.startswith(b"durable.f\0") and b"t." in content for content in found)
    assert all(content.startswith(b"durable.") for content in found)


async def test_unsynced_name_may_be_lost() -> None:
    disk = await disk_with_file(is_name_durable=False)
    assert {tuple(crashed.paths()) for crashed in crashes(disk)} == {(), ("d/a",)}


async def test_unsynced_removal_may_be_undone() -> None:
    disk = await disk_with_file()
    await disk.unlink("d/a")
    assert {tuple(crashed.paths()) for crashed in crashes(disk)} == {(), ("d/a",)}
    await disk.sync_directory("d")
    assert {tuple(crashed.paths()) for crashed in crashes(disk)} == {()}


async def test_replaced_file_survives() -> None:
    disk = MemoryDisk()
    await disk.make_directory("d")
    await disk.replace("d/a", b"old")
    await disk.replace("d/a", b"new")
    assert {crashed.content("d/a") for crashed in crashes(disk)} == {b"new"}


async def test_a_replacement_that_fails_after_the_rename_can_be_read_and_may_be_lost() -> None:
    disk = MemoryDisk()
    await disk.make_directory("d")
    await disk.replace("d/a", b"old")

    def fail(path: str) -> None:
        raise DiskFullError(f"no space for {path}")

    disk.replaced = fail
    with pytest.raises(DiskFullError, match="d/a"):
        await disk.replace("d/a", b"new")
    assert disk.content("d/a") == b"new"
    assert {crashed.content("d/a") for crashed in crashes(disk)} == {b"old", b"new"}


async def test_same_seed_gives_the_same_disk() -> None:
    disk = await disk_with_file()
    for seed in SEEDS:
        one, two = disk.crash(random.Random(seed)), disk.crash(random.Random(seed))
        assert [one.content(path) for path in one.paths()] == [two.content(path) for path in two.paths()]


async def test_killed_process_leaves_everything_readable_but_not_durable() -> None:
    restarted = (await disk_with_file()).restarted()
    assert restarted.content("d/a") == b"durable.first.second."
    assert b"durable." in {crashed.content("d/a") for crashed in crashes(restarted)}


async def test_bytes_of_a_failed_sync_can_be_read_and_are_still_lost() -> None:
    async def failing(operation: Operation, path: str) -> None:
        if operation is Operation.SYNC:
            raise DiskError("input/output error")

    disk = await disk_with_file()
    disk.before = failing
    file = await disk.create("d/b")
    await file.append([b"x"])
    with pytest.raises(DiskError):
        await file.sync()
    with pytest.raises(DiskError):
        await file.sync()
    assert disk.syncs_after_failure == 1
    await disk.sync_directory("d")
    restarted = disk.restarted()
    assert restarted.content("d/b") == b"x"
    assert all(
        not crashed.content("d/b").strip(b"\0") or len(crashed.content("d/b")) == 1 for crashed in crashes(restarted)
    )
    assert b"x" not in {crashed.content("d/b") for crashed in crashes(restarted)}


async def test_a_later_sync_succeeds_and_does_not_write_the_bytes_of_a_failed_one() -> None:
    """As on Linux, where a failed sync makes the pages clean."""
    disk = await disk_with_file()

    async def failing(operation: Operation, path: str) -> None:
        if operation is Operation.SYNC:
            raise DiskError("input/output error")

    disk.before = failing
    file = await disk.create("d/b")
    await file.append([b"dropped"])
    with pytest.raises(DiskError):
        await file.sync()
    await disk.sync_directory("d")
    restarted = disk.restarted()
    assert restarted.syncs_after_failure == 0, "another process does not know about the failure"
    file = await restarted.open("d/b")
    await file.sync()
    assert await file.read([(0, 7)]) == [b"dropped"]
    found = {crashed.content("d/b") for crashed in crashes(restarted)}
    assert b"dropped" not in found
    assert {b"", bytes(7)} <= found


async def test_full_disk_takes_a_part_and_refuses_the_rest() -> None:
    disk = MemoryDisk(capacity_bytes=10)
    await disk.make_directory("d")
    file = await disk.create("d/a")
    await file.append([b"01234567"])
    with pytest.raises(DiskFullError):
        await file.append([b"abcdef"])
    assert disk.content("d/a") == b"01234567abc"
    with pytest.raises(DiskFullError):
        await disk.replace("d/b", b"12345678901")
    assert await disk.space() == (10, 0)


async def test_bytes_at_rest_can_be_damaged() -> None:
    disk = await disk_with_file()
    disk.flip_bit("d/a", 8)
    disk.overwrite("d/a", 2, b"RR")
    assert disk.content("d/a").startswith(b"dtRRble.")
    disk.cut("d/a", 3)
    assert disk.content("d/a") == b"dtR"
    disk.lose("d/a")
    assert disk.paths() == []


async def test_interrupted_index_write_is_atomic() -> None:
    index = MemoryIndex()
    await index.write([(b"a", b"1")])

    async def cut(operation: Operation, path: str) -> None:
        raise KeyboardInterrupt

    index.before = cut
    with pytest.raises(KeyboardInterrupt):
        await index.write([(b"b", b"2"), (b"c", b"3")], [b"a"])
    found = set()
    for seed in SEEDS:
        found.add(tuple(await index.crash(random.Random(seed)).keys(b"", b"\xff", 10)))
    assert found == {(b"a",), (b"b", b"c")}


async def test_refused_index_write_has_no_effect() -> None:
    async def full(operation: Operation, path: str) -> None:
        raise DiskFullError("no space left")

    index = MemoryIndex(before=full)
    with pytest.raises(DiskFullError):
        await index.write([(b"a", b"1")])
    for seed in SEEDS:
        assert await index.crash(random.Random(seed)).keys(b"", b"\xff", 10) == []
