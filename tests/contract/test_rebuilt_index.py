"""Rebuilding the index of a stopped bookie's directories, on the real engine and with an interruption at each step."""

from __future__ import annotations

import random
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from bookie.metadata.bookies.cookies import Cookie, encode_cookie
from bookie.model.errors import FatalError
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.runtime.clock import SystemClock
from bookie.server.joining.directories import CURRENT, INCARNATION_FILE, LIMBO_FILE, REBUILT_FILE, VERSION_FILE
from bookie.server.joining.rebuilt import rebuild_index
from bookie.server.joining.stopped import NoBookieError
from bookie.server.joining.succession import OfflineRepairRefusedError
from bookie.storage.disks.directory_lock import DirectoryInUseError
from bookie.storage.disks.files import FileDisk
from bookie.storage.disks.rocks import RocksIndex
from bookie.storage.errors import LostIndexError
from bookie.storage.rebuilding import RebuiltIndex
from bookie.storage.settings import StorageSettings
from bookie.storage.store import LedgerStorage
from bookie.wire.port import AddBatch, Status
from tests.unit.bookie.storage.test_rebuilding import KEY, L1, L2, L3, add, collect, listed, read
from tests.worlds.entries import raw_entry

COOKIE = encode_cookie(Cookie(BookieId("bk1:3181"), ("/journal",), ("/ledgers",)))
SETTINGS = StorageSettings(cache_bytes_max=1 << 20, journal_file_bytes=1, compact_bytes_per_s=1 << 40)


@asynccontextmanager
async def store_in(home: Path) -> AsyncIterator[LedgerStorage]:
    async with AsyncExitStack() as stack:
        journal = await FileDisk.acquire(home / "journal" / CURRENT)
        stack.push_async_callback(journal.close)
        ledgers = await FileDisk.acquire(home / "ledgers" / CURRENT)
        stack.push_async_callback(ledgers.close)
        index = await RocksIndex.open(home / "ledgers" / CURRENT / "index")
        stack.push_async_callback(index.close)
        store = await LedgerStorage.open(journal, ledgers, index, SETTINGS, SystemClock())
        stack.push_async_callback(store.close)
        yield store


async def filled(home: Path) -> None:
    """Fill a bookie by writing, fencing, deleting and compacting, and stop it."""
    async with store_in(home) as store:
        await add(store, L1, *range(10))
        await add(store, L2, *range(10))
        await store.checkpoint()
        await add(store, L1, *range(5))
        await add(store, L3, 0)
        assert (await store.fence(L3, KEY)).status is Status.OK
        await store.checkpoint()
        await collect(store, L2)
        assert (await store.compact()).removed_logs
    for name in ("journal", "ledgers"):
        (home / name / CURRENT / VERSION_FILE).write_bytes(COOKIE)
        (home / name / CURRENT / INCARNATION_FILE).write_text("before")


def lose_index(home: Path) -> None:
    shutil.rmtree(home / "ledgers" / CURRENT / "index")


async def again(home: Path, *, may_replace: bool = False) -> RebuiltIndex:
    rng = random.Random(1)
    return await rebuild_index([home / "journal"], [home / "ledgers"], SystemClock(), rng, may_replace=may_replace)


def identity(home: Path) -> set[tuple[str, str, str]]:
    """Return the contents of the identity files in each directory."""
    current = [home / name / CURRENT for name in ("journal", "ledgers")]
    return {
        ((each / INCARNATION_FILE).read_text(), (each / LIMBO_FILE).read_text(), (each / REBUILT_FILE).read_text())
        for each in current
    }


async def check_served(home: Path) -> None:
    async with store_in(home) as store:
        assert await listed(store, L1) == (Status.LIMBO, list(range(10)))
        assert await read(store, L1, *range(10)) == [(Status.OK, raw_entry(1, number)) for number in range(10)]
        assert await read(store, L3, 0, 1) == [(Status.OK, raw_entry(3, 0)), (Status.LIMBO, b"")]
        assert await listed(store, L2) == (Status.NO_LEDGER, [])


async def test_a_rebuild_of_a_lost_index_is_offered_and_a_new_incarnation_serves_everything(
    tmp_path: Path,
) -> None:
    await filled(tmp_path)
    lose_index(tmp_path)
    with pytest.raises(LostIndexError, match="rebuild-index"):
        async with store_in(tmp_path):
            pass
    found = await again(tmp_path)
    assert (found.entries, found.ledgers, found.finding_count) == (11, 2, 0)
    [(incarnation, pending, before)] = identity(tmp_path)
    assert incarnation == pending != "before"
    assert before == "before"
    await check_served(tmp_path)


async def test_a_damaged_index_is_replaced_and_the_old_one_is_kept(tmp_path: Path) -> None:
    await filled(tmp_path)
    current = tmp_path / "ledgers" / CURRENT
    (current / "index" / "CURRENT").write_text("rubbish")
    with pytest.raises(FatalError, match="rebuild-index"):
        async with store_in(tmp_path):
            pass
    await again(tmp_path)
    assert [path for path in current.iterdir() if path.name.startswith("index.lost-")]
    await check_served(tmp_path)


async def test_an_interrupted_rebuild_is_refused_at_the_start_and_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rebuild is stopped before each durable write of the identity files, and between the renames."""
    await filled(tmp_path / "filled")
    lose_index(tmp_path / "filled")
    replace, rename = FileDisk.replace, Path.rename
    steps = 0
    for at in range(100):
        home = tmp_path / str(at)
        shutil.copytree(tmp_path / "filled", home)
        (home / "ledgers" / CURRENT / "index").mkdir()  # a start would create it
        steps = 0

        def step(at: int = at) -> None:
            nonlocal steps
            if steps == at:
                raise KeyboardInterrupt
            steps += 1

        async def replacing(self: FileDisk, path: str, data: bytes) -> None:
            step()
            await replace(self, path, data)

        def renaming(self: Path, target: Path) -> Path:
            if "index" in self.name:
                step()
            return rename(self, target)

        with monkeypatch.context() as patched:
            patched.setattr(FileDisk, "replace", replacing)
            patched.setattr(Path, "rename", renaming)
            try:
                await again(home)
            except KeyboardInterrupt:
                is_done = False
            else:
                is_done = True
        if is_done:
            assert steps == 8
            return
        with pytest.raises(LostIndexError):
            async with store_in(home):
                pass
        await again(home)
        [(incarnation, pending, before)] = identity(home)
        assert incarnation == pending != "before"
        assert before == "before"
        await check_served(home)
    pytest.fail("the rebuild never ended")


async def test_a_usable_index_is_replaced_only_on_request(tmp_path: Path) -> None:
    await filled(tmp_path)
    with pytest.raises(OfflineRepairRefusedError, match="can be used"):
        await again(tmp_path)
    assert not (tmp_path / "ledgers" / CURRENT / LIMBO_FILE).exists()
    await again(tmp_path, may_replace=True)
    await check_served(tmp_path)


async def test_a_running_bookie_is_not_changed(tmp_path: Path) -> None:
    await filled(tmp_path)
    async with store_in(tmp_path):
        with pytest.raises(DirectoryInUseError):
            await again(tmp_path, may_replace=True)


async def test_other_directories_are_refused_and_not_changed(tmp_path: Path) -> None:
    with pytest.raises(NoBookieError, match="no directory current"):
        await again(tmp_path)
    await filled(tmp_path)
    lose_index(tmp_path)
    current = tmp_path / "journal" / CURRENT
    for name, content, problem in (
        (VERSION_FILE, COOKIE.decode().replace("bk1", "bk2"), "different bookies"),
        (VERSION_FILE, "another", "damaged"),
        (INCARNATION_FILE, "another", "different incarnations"),
        (LIMBO_FILE, "another", "new incarnation whose start was interrupted"),
    ):
        kept = (current / name).read_bytes() if (current / name).exists() else None
        (current / name).write_text(content)
        with pytest.raises(OfflineRepairRefusedError, match=problem):
            await again(tmp_path)
        if kept is None:
            (current / name).unlink()
        else:
            (current / name).write_bytes(kept)
    (current / VERSION_FILE).unlink()
    with pytest.raises(OfflineRepairRefusedError, match="no file VERSION"):
        await again(tmp_path)
    assert not (current / REBUILT_FILE).exists()


async def test_many_entries_in_many_logs_are_restored(tmp_path: Path) -> None:
    async with store_in(tmp_path) as store:
        for number in range(20):
            batch = [
                raw_entry(number % 3, entry_id, b"x" * 2000) for entry_id in range(number * 100, number * 100 + 100)
            ]
            assert (await store.add(AddBatch(LedgerId(number % 3), KEY, batch))).status is Status.OK
            await store.checkpoint()
    for name in ("journal", "ledgers"):
        (tmp_path / name / CURRENT / VERSION_FILE).write_bytes(COOKIE)
        (tmp_path / name / CURRENT / INCARNATION_FILE).write_text("before")
    lose_index(tmp_path)
    found = await again(tmp_path)
    assert (found.entries, found.ledgers, found.logs) == (2000, 3, 20)
    async with store_in(tmp_path) as store:
        for number in range(20):
            ids = [EntryId(entry_id) for entry_id in range(number * 100, number * 100 + 100)]
            results = (await store.read(LedgerId(number % 3), ids)).results
            assert [result.packet for result in results] == [raw_entry(number % 3, each, b"x" * 2000) for each in ids]
