"""Salvaging a damaged journal of a stopped bookie, on the real engine and with an interruption at each step."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from bookie.runtime.clock import SystemClock
from bookie.server.joining.directories import CURRENT, INCARNATION_FILE, LIMBO_FILE, VERSION_FILE
from bookie.server.joining.salvaged import salvage_at_start, salvage_journal
from bookie.server.joining.stopped import NoBookieError
from bookie.server.joining.succession import OfflineRepairRefusedError
from bookie.storage.disks.directory_lock import DirectoryInUseError
from bookie.storage.disks.files import FileDisk
from bookie.storage.errors import DamagedJournalError, LostIndexError
from bookie.storage.salvaging import SalvagedJournal
from bookie.wire.port import AddBatch, Status
from tests.contract.test_rebuilt_index import COOKIE, again, identity, lose_index, store_in
from tests.unit.bookie.storage.test_rebuilding import KEY, L1, L2, add, listed, read
from tests.worlds.entries import raw_entry

STEPS = 8
"""The steps of a salvage: six identity files, the rename, and the mark of the new journal."""


async def filled(home: Path) -> None:
    """Fill a bookie and kill it with entries and a fence only in its journal."""
    async with store_in(home) as store:
        await add(store, L1, 0, 1)
        await store.checkpoint()
        await add(store, L1, 2, 3)
        assert (await store.fence(L2, KEY)).status is Status.OK
        await add(store, L1, 4, 5)
        await store.abort()
    for name in ("journal", "ledgers"):
        (home / name / CURRENT / VERSION_FILE).write_bytes(COOKIE)
        (home / name / CURRENT / INCARNATION_FILE).write_text("before")


def journal_files(home: Path) -> list[Path]:
    return sorted((home / "journal" / CURRENT / "journal").glob("*.journal"))


def damage(home: Path) -> None:
    """Change a byte of an entry: the batch of entries 2 and 3."""
    path = journal_files(home)[0]
    data = bytearray(path.read_bytes())
    data[-10] ^= 1
    path.write_bytes(data)


async def salvaged(home: Path, *, is_lost: bool = False) -> SalvagedJournal:
    return await salvage_journal(
        [home / "journal"], [home / "ledgers"], SystemClock(), random.Random(1), is_lost=is_lost
    )


async def check_served(home: Path, *lost: int) -> None:
    async with store_in(home) as store:
        expected = [(Status.LIMBO, b"") if each in lost else (Status.OK, raw_entry(1, each)) for each in range(6)]
        assert await read(store, L1, *range(6)) == expected
        assert (await listed(store, L1))[0] is Status.LIMBO
        for ledger_id in (L1,) if len(lost) > 2 else (L1, L2):
            assert (await store.add(AddBatch(ledger_id, KEY, [raw_entry(ledger_id, 9)]))).status is Status.LIMBO


async def check_refused(home: Path) -> None:
    with pytest.raises(DamagedJournalError, match="bkheal bookie salvage-journal"):
        async with store_in(home):
            pass


async def test_a_damaged_journal_is_salvaged_and_a_new_incarnation_serves_everything_else(tmp_path: Path) -> None:
    await filled(tmp_path)
    damage(tmp_path)
    await check_refused(tmp_path)
    kept = [path.read_bytes() for path in journal_files(tmp_path)]
    found = await salvaged(tmp_path)
    assert (found.ledgers, found.findings.finding_count) == (2, 1)
    [(incarnation, pending, before)] = identity(tmp_path)
    assert incarnation == pending != "before"
    assert before == "before"
    [aside] = (tmp_path / "journal" / CURRENT).glob("journal.damaged-*")
    assert [path.read_bytes() for path in sorted(aside.glob("*.journal"))] == kept
    await check_served(tmp_path, 2, 3)
    await check_served(tmp_path, 2, 3)


@pytest.mark.parametrize("interrupted", [(1, 3, 6, 7, STEPS), pytest.param(range(STEPS + 1), marks=pytest.mark.long)])
async def test_a_salvage_that_is_interrupted_is_refused_at_the_start_and_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interrupted: Sequence[int]
) -> None:
    """Stop the salvage before a durable write of the identity files, before the rename, or before the new journal."""
    await filled(tmp_path / "filled")
    damage(tmp_path / "filled")
    replace, rename = FileDisk.replace, Path.rename
    for at in interrupted:
        home = tmp_path / str(at)
        shutil.copytree(tmp_path / "filled", home)
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
            if self.name == "journal":
                step()
            return rename(self, target)

        with monkeypatch.context() as patched:
            patched.setattr(FileDisk, "replace", replacing)
            patched.setattr(Path, "rename", renaming)
            try:
                await salvaged(home)
            except KeyboardInterrupt:
                is_done = False
            else:
                is_done = True
        if is_done:
            assert at == steps == STEPS
            return
        await check_refused(home)
        await salvaged(home)
        [(incarnation, pending, before)] = identity(home)
        assert incarnation == pending != "before"
        assert before == "before"
        await check_served(home, 2, 3)
    pytest.fail("the salvage never ended")


@pytest.mark.parametrize("is_directory_gone", [False, True])
async def test_a_completely_lost_journal_is_given_up_only_on_request(tmp_path: Path, is_directory_gone: bool) -> None:
    await filled(tmp_path)
    shutil.rmtree(tmp_path / "journal")
    if not is_directory_gone:
        (tmp_path / "journal" / CURRENT).mkdir(parents=True)
        with pytest.raises(OfflineRepairRefusedError, match="--lost"):
            await salvaged(tmp_path)
    else:
        (tmp_path / "journal").mkdir()
        with pytest.raises(NoBookieError):
            await salvaged(tmp_path)
    await salvaged(tmp_path, is_lost=True)
    [(incarnation, pending, before)] = identity(tmp_path)
    assert incarnation == pending != "before"
    assert before == "before"
    assert not (tmp_path / "journal" / CURRENT / VERSION_FILE).exists()  # the start writes this file in its last step
    await check_served(tmp_path, 2, 3, 4, 5)


async def test_a_usable_journal_and_a_running_bookie_are_not_changed(tmp_path: Path) -> None:
    await filled(tmp_path)
    for is_lost in (False, True):
        with pytest.raises(OfflineRepairRefusedError, match="can be used"):
            await salvaged(tmp_path, is_lost=is_lost)
    async with store_in(tmp_path):
        with pytest.raises(DirectoryInUseError):
            await salvaged(tmp_path)
    assert not (tmp_path / "journal" / CURRENT / LIMBO_FILE).exists()


async def test_a_lost_index_must_be_rebuilt_before_the_journal_is_salvaged(tmp_path: Path) -> None:
    await filled(tmp_path)
    damage(tmp_path)
    lose_index(tmp_path)
    with pytest.raises(LostIndexError, match="first rebuild it with `bkheal bookie rebuild-index`"):
        await salvaged(tmp_path)
    await again(tmp_path)
    await check_refused(tmp_path)
    await salvaged(tmp_path)
    assert len(identity(tmp_path)) == 1
    await check_served(tmp_path, 2, 3)


async def test_a_start_salvages_a_journal_once_and_continues_an_interrupted_salvage(tmp_path: Path) -> None:
    await filled(tmp_path)
    damage(tmp_path)
    journal = await FileDisk.acquire(tmp_path / "journal" / CURRENT)
    ledgers = await FileDisk.acquire(tmp_path / "ledgers" / CURRENT)
    directories = [tmp_path / "journal"], [tmp_path / "ledgers"]

    async def start() -> None:
        problem = DamagedJournalError("damaged")
        await salvage_at_start([journal], [ledgers], *directories, problem, random.Random(1), SystemClock())

    await start()
    new = tmp_path / "journal" / CURRENT / "journal"
    shutil.rmtree(new)  # the state after a crash that follows the rename
    await start()
    for name in ("mark-0.tmp", "place"):  # the states after crashes that precede the mark
        shutil.rmtree(new)
        new.mkdir()
        (new / name).write_bytes(b"")
        await start()
    for mark in (tmp_path / "journal" / CURRENT / "journal").iterdir():
        mark.write_bytes(b"rubbish")
    with pytest.raises(DamagedJournalError, match=r"salvaged before.*journal\.damaged"):
        await start()
    for aside in (tmp_path / "journal" / CURRENT).glob("journal.damaged-*"):
        shutil.rmtree(aside)
    await start()
    for disk in (journal, ledgers):
        await disk.close()
    await check_served(tmp_path, 2, 3)
