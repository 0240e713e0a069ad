"""The commands for a stopped bookie with several ledger directories, on real files."""

from __future__ import annotations

import random
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from bookie.metadata.bookies.cookies import Cookie, encode_cookie
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.runtime.clock import SystemClock
from bookie.server.joining import stopped
from bookie.server.joining.directories import (
    CURRENT,
    INCARNATION_FILE,
    INDEX_DIRECTORY,
    VERSION_FILE,
    DirectoryRole,
    LocalDirectory,
    read_directory,
)
from bookie.server.joining.formatting import FormatRefusedError, check_all_can_be_opened
from bookie.server.joining.rebuilt import rebuild_index
from bookie.server.joining.salvaged import salvage_journal
from bookie.server.joining.stopped import NoBookieError, stopped_disks, stopped_storage
from bookie.server.joining.succession import OfflineRepairRefusedError
from bookie.storage.disks.directory_lock import DirectoryInUseError
from bookie.storage.disks.files import FileDisk
from bookie.storage.disks.rocks import RocksIndex
from bookie.storage.disks.spread import SpreadDirectory, SpreadDisk
from bookie.storage.entry_logs.entry_log import log_path
from bookie.storage.port import Disk, DiskError
from bookie.storage.settings import StorageSettings
from bookie.storage.store import LedgerStorage
from bookie.wire.port import AddBatch, Status
from tests.worlds.entries import raw_entry

LEDGER = LedgerId(7)
KEY = b"k" * 20
COOKIE = encode_cookie(Cookie(BookieId("bk1:3181"), ("/journal",), ("/ledgers", "/more")))
NAMES = ("journal", "ledgers", "more")


def entry(entry_id: int) -> bytes:
    return raw_entry(LEDGER, entry_id)


async def filled(home: Path) -> tuple[Path, list[Path]]:
    """A stopped bookie with an entry log in each of two ledger directories."""
    journal, *ledgers = [await FileDisk.acquire(home / name / CURRENT) for name in NAMES]
    index = await RocksIndex.open(home / "ledgers" / CURRENT / INDEX_DIRECTORY)
    parts = [SpreadDirectory(name, disk) for name, disk in zip(NAMES[1:], ledgers, strict=True)]
    spread = await SpreadDisk.over(parts, SystemClock())
    store = await LedgerStorage.open(journal, spread, index, StorageSettings(), SystemClock())
    for number in range(2):
        assert (await store.add(AddBatch(LEDGER, KEY, [entry(number)]))).status is Status.OK
        await store.checkpoint()
    await store.close()
    for disk in (journal, *ledgers):
        await disk.close()
    for name in NAMES:
        (home / name / CURRENT / VERSION_FILE).write_bytes(COOKIE)
        (home / name / CURRENT / INCARNATION_FILE).write_text("before")
    for number, name in ((1, "ledgers"), (2, "more")):  # the directories share a disk, so the store may choose either
        found = next(path for each in NAMES[1:] if (path := home / each / CURRENT / log_path(number)).exists())
        found.rename(home / name / CURRENT / log_path(number))
    return home / "journal", [home / "ledgers", home / "more"]


async def statuses(journal: Path, ledgers: list[Path]) -> list[Status]:
    async with stopped_disks([journal], ledgers) as disks, stopped_storage(disks) as storage:
        return [result.status for result in await storage.read(LEDGER, [EntryId(number) for number in range(3)])]


async def test_all_directories_are_read(tmp_path: Path) -> None:
    journal, ledgers = await filled(tmp_path)
    assert await statuses(journal, ledgers) == [Status.OK, Status.OK, Status.NO_ENTRY]
    async with stopped_disks([journal], ledgers) as disks, stopped_storage(disks) as storage:
        assert (await storage.status()).entry_logs == 2


@pytest.mark.parametrize("is_there", [False, True])
async def test_a_missing_directory_is_skipped_by_reads_and_required_by_changes(tmp_path: Path, is_there: bool) -> None:
    journal, ledgers = await filled(tmp_path)
    ledgers[1].rename(tmp_path / "away")
    if is_there:
        (ledgers[1] / CURRENT).mkdir(parents=True)
    assert await statuses(journal, ledgers) == [Status.OK, Status.IO_ERROR, Status.NO_ENTRY]
    async with stopped_disks([journal], ledgers) as disks:
        if not is_there:
            with pytest.raises(FormatRefusedError, match="mounted"):
                check_all_can_be_opened(disks.directories)
    with pytest.raises(OfflineRepairRefusedError, match="VERSION"):
        await rebuild_index([journal], ledgers, SystemClock(), random.Random(1), may_replace=True)


async def test_an_unreadable_directory_is_skipped_unless_it_is_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, ledgers = await filled(tmp_path)

    async def failing(role: DirectoryRole, path: str, disk: Disk) -> LocalDirectory:
        if path == str(unreadable):
            raise DiskError("input/output error")
        return await read_directory(role, path, disk)

    monkeypatch.setattr(stopped, "read_directory", failing)
    unreadable = ledgers[1]
    assert await statuses(journal, ledgers) == [Status.OK, Status.IO_ERROR, Status.NO_ENTRY]
    unreadable = ledgers[0]
    with pytest.raises(DiskError, match="input/output error"):
        await statuses(journal, ledgers)


async def test_an_omitted_directory_is_noticed(tmp_path: Path) -> None:
    """Otherwise the next start, with all directories, would remove the logs of this one."""
    journal, ledgers = await filled(tmp_path)
    with pytest.raises(OfflineRepairRefusedError, match="/ledgers, /more, and 1 was given"):
        await rebuild_index([journal], ledgers[:1], SystemClock(), random.Random(1), may_replace=True)
    with pytest.raises(OfflineRepairRefusedError, match="/ledgers, /more, and 1 was given"):
        await salvage_journal([journal], ledgers[:1], SystemClock(), random.Random(1))
    assert await statuses(journal, ledgers) == [Status.OK, Status.OK, Status.NO_ENTRY]


async def test_a_lost_index_is_rebuilt_from_all_directories(tmp_path: Path) -> None:
    journal, ledgers = await filled(tmp_path)
    found = await rebuild_index([journal], ledgers, SystemClock(), random.Random(1), may_replace=True)
    assert (found.logs, found.entries, found.findings) == (2, 2, [])
    incarnations = {(tmp_path / name / CURRENT / INCARNATION_FILE).read_text() for name in NAMES}
    assert len(incarnations) == 1
    assert incarnations != {"before"}
    assert await statuses(journal, ledgers) == [Status.OK, Status.OK, Status.LIMBO]


@pytest.mark.parametrize("command", [rebuild_index, salvage_journal])
@pytest.mark.parametrize("stamped", [1, 2])
async def test_a_bookie_with_an_interrupted_addition_of_a_directory_can_be_rebuilt_or_salvaged(
    tmp_path: Path, stamped: int, command: Callable[..., Awaitable[object]]
) -> None:
    """The addition had written the files VERSION of the first ``stamped`` directories, and none to the added one."""
    journal, ledgers = await filled(tmp_path)
    added = tmp_path / "added" / CURRENT
    added.mkdir(parents=True)
    (added / INCARNATION_FILE).write_text("before")
    grown = encode_cookie(Cookie(BookieId("bk1:3181"), ("/journal",), ("/ledgers", "/more", "/added")))
    for name in NAMES[:stamped]:
        (tmp_path / name / CURRENT / VERSION_FILE).write_bytes(grown)
    if command is rebuild_index:
        shutil.rmtree(ledgers[0] / CURRENT / INDEX_DIRECTORY)
    else:
        shutil.rmtree(journal / CURRENT / "journal")
    with pytest.raises(OfflineRepairRefusedError, match="/added, and 2 were given"):
        await command([journal], ledgers, SystemClock(), random.Random(1))
    await command([journal], [*ledgers, added.parent], SystemClock(), random.Random(1))
    incarnations = {(tmp_path / name / CURRENT / INCARNATION_FILE).read_text() for name in (*NAMES, "added")}
    assert len(incarnations) == 1
    assert incarnations != {"before"}
    assert await statuses(journal, [*ledgers, added.parent]) == [Status.OK, Status.OK, Status.LIMBO]


@pytest.mark.parametrize("incarnation", [None, "before"], ids=["empty", "its addition began"])
async def test_a_directory_that_no_cookie_has_is_left_to_the_next_start(
    tmp_path: Path, incarnation: str | None
) -> None:
    journal, ledgers = await filled(tmp_path)
    added = tmp_path / "added"
    (added / CURRENT).mkdir(parents=True)
    if incarnation is not None:
        (added / CURRENT / INCARNATION_FILE).write_text(incarnation)
    with pytest.raises(
        OfflineRepairRefusedError, match=r"/ledgers, /more, and 3 were given: give only .* next start adds"
    ):
        await rebuild_index([journal], [*ledgers, added], SystemClock(), random.Random(1), may_replace=True)
    await rebuild_index([journal], ledgers, SystemClock(), random.Random(1), may_replace=True)


@pytest.mark.parametrize("names", [("ledgers", "journal", "more"), ("journal", "more", "ledgers"), ("journal", "more")])
async def test_directories_in_the_wrong_order_are_refused(tmp_path: Path, names: tuple[str, ...]) -> None:
    """Otherwise the index would be created in the wrong directory, without the entries of the others."""
    journal, ledgers = await filled(tmp_path)
    known = Cookie(BookieId("bk1:3181"), (str(journal),), tuple(map(str, ledgers)))
    for name in NAMES:
        (tmp_path / name / CURRENT / VERSION_FILE).write_bytes(encode_cookie(known))
    paths = [tmp_path / name for name in names]
    with pytest.raises(NoBookieError, match="wrong place"):
        await rebuild_index(paths[:1], paths[1:], SystemClock(), random.Random(1), may_replace=True)
    with pytest.raises(NoBookieError, match="wrong place"):
        await salvage_journal(paths[:1], paths[1:], SystemClock(), random.Random(1))
    with pytest.raises(NoBookieError, match="wrong place"):
        await statuses(paths[0], paths[1:])
    assert await statuses(journal, ledgers) == [Status.OK, Status.OK, Status.NO_ENTRY]


async def test_a_directory_given_twice_is_refused(tmp_path: Path) -> None:
    journal, ledgers = await filled(tmp_path)
    with pytest.raises(DirectoryInUseError, match="give each directory once"):
        await statuses(journal, [ledgers[0], ledgers[0]])


@pytest.mark.parametrize("incarnation", [None, "another"])
async def test_a_directory_without_a_cookie_and_of_another_incarnation_is_refused(
    tmp_path: Path, incarnation: str | None
) -> None:
    journal, ledgers = await filled(tmp_path)
    (ledgers[1] / CURRENT / VERSION_FILE).unlink()
    (ledgers[1] / CURRENT / INCARNATION_FILE).unlink()
    if incarnation is not None:
        (ledgers[1] / CURRENT / INCARNATION_FILE).write_text(incarnation)
    with pytest.raises(OfflineRepairRefusedError):
        await rebuild_index([journal], ledgers, SystemClock(), random.Random(1), may_replace=True)
    assert await statuses(journal, ledgers) == [Status.OK, Status.IO_ERROR, Status.NO_ENTRY]


async def test_the_index_is_not_rebuilt_if_its_disk_is_mounted_at_the_place_of_another_one(tmp_path: Path) -> None:
    """Its keys, fences and limbo would be given up."""
    journal, ledgers = await filled(tmp_path)
    ledgers[0].rename(tmp_path / "first")
    ledgers[1].rename(ledgers[0])
    (tmp_path / "first").rename(ledgers[1])
    with pytest.raises(OfflineRepairRefusedError, match=f"belongs at the place of {ledgers[0]}"):
        await rebuild_index([journal], ledgers, SystemClock(), random.Random(1))
    ledgers[1].rename(tmp_path / "first")
    ledgers[0].rename(ledgers[1])
    (tmp_path / "first").rename(ledgers[0])
    assert await statuses(journal, ledgers) == [Status.OK, Status.OK, Status.NO_ENTRY]
    with pytest.raises(OfflineRepairRefusedError, match="start the bookie"):
        await rebuild_index([journal], ledgers, SystemClock(), random.Random(1))
