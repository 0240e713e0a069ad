"""A damaged journal is salvaged: readable entries are served, others are unknown, and old writers get no answer."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from bookie.model.ids import LedgerId
from bookie.runtime.fault_points import inject_faults
from bookie.storage import salvaging
from bookie.storage.disks.memory import MemoryDisk, MemoryIndex, Operation, yield_control
from bookie.storage.entry_logs.entry_log import HEADER_SIZE, RECORD_HEADER_SIZE, log_ids, log_path
from bookie.storage.errors import DamagedJournalError, LostIndexError
from bookie.storage.journal.format import FILE_HEADER_SIZE
from bookie.storage.journal.replay import DIRECTORY
from bookie.storage.port import DiskError, DiskFullError
from bookie.storage.rebuilding import rebuild
from bookie.storage.salvaging import SalvagedJournal, begin_journals, damage_of, salvage
from bookie.storage.store import LedgerStorage
from bookie.wire.port import AddBatch, Status
from tests.unit.bookie.storage.test_rebuilding import KEY, L1, L2, L3, L4, SETTINGS, add, collect, listed, opened, read
from tests.worlds.clocks import ManualClock
from tests.worlds.entries import raw_entry

ACKNOWLEDGED = {L1: range(6), L2: range(3), L3: range(1)}


class Disks:
    """The disks of a stopped store."""

    def __init__(self) -> None:
        self.journal, self.ledgers, self.index = MemoryDisk(), MemoryDisk(), MemoryIndex()

    async def open(self) -> LedgerStorage:
        return await opened(self.journal, self.ledgers, self.index)

    def copy(self) -> Disks:
        other = Disks()
        other.journal, other.ledgers = self.journal.restarted(), self.ledgers.restarted()
        other.index = self.index.restarted()
        return other

    def with_index(self, index: MemoryIndex) -> Disks:
        """Return a copy with another state of the index, for example without its last writes."""
        other = self.copy()
        other.index = index
        return other

    def files(self) -> list[str]:
        return [path for path in self.journal.paths() if path.endswith(".journal")]

    async def salvaged(self) -> SalvagedJournal:
        """Run all steps of a salvage; the journal is removed by deleting its files."""
        assert await damage_of([self.journal], self.index) is not None
        found = await salvage([self.journal], self.ledgers, self.index, SETTINGS)
        with pytest.raises(DamagedJournalError):
            await self.open()
        for path in self.journal.paths():
            self.journal.lose(path)
        await begin_journals([self.journal], self.index, found.epoch + 1)
        return found


async def used() -> Disks:
    """Return a killed store: checkpointed entries of L1; in the journal, the rest of L1, L2, and L3 with its fence."""
    disks = Disks()
    store = await disks.open()
    await add(store, L4, 0)
    await add(store, L1, 0, 1)
    await store.checkpoint()
    await collect(store, L4)
    await store.checkpoint()
    await add(store, L1, 2, 3)
    await add(store, L2, 0, 1, 2)
    assert (await store.fence(L2, KEY)).status is Status.OK
    await add(store, L3, 0)
    await add(store, L1, 4, 5)
    await store.abort()
    return disks.copy()


async def check(store: LedgerStorage) -> set[tuple[LedgerId, int]]:
    """Check that, after a salvage, no acknowledged entry is denied and no old writer is answered.

    Return the served entries.
    """
    await store.set_limbo(list(ACKNOWLEDGED))  # a start does this with the ledgers that the metadata names
    served = set()
    for ledger_id, entry_ids in ACKNOWLEDGED.items():
        for entry_id, (status, packet) in zip(entry_ids, await read(store, ledger_id, *entry_ids), strict=True):
            assert status in (Status.OK, Status.LIMBO)
            if status is Status.OK:
                assert packet == raw_entry(ledger_id, entry_id)
                served.add((ledger_id, entry_id))
        assert (await store.add(AddBatch(ledger_id, KEY, [raw_entry(ledger_id, 100)]))).status is Status.LIMBO
    return served


async def check_whole(store: LedgerStorage) -> None:
    """Check that nothing is missing, except perhaps the last batch (J12) and fences."""
    for ledger_id, entry_ids in ACKNOWLEDGED.items():
        found = await read(store, ledger_id, *entry_ids)
        last = (Status.NO_ENTRY, b"")
        for entry_id, result in zip(entry_ids, found, strict=True):
            assert result == (Status.OK, raw_entry(ledger_id, entry_id)) or (result == last and entry_id >= 4)
    assert (await store.add(AddBatch(L2, KEY, [raw_entry(L2, 100)]))).status is Status.FENCED


def lose(number: int) -> Callable[[Disks], None]:
    return lambda disks: disks.journal.lose(disks.files()[number])


def flip(number: int, byte: int) -> Callable[[Disks], None]:
    return lambda disks: disks.journal.flip_bit(disks.files()[number], byte * 8)


def cut(number: int, size: int) -> Callable[[Disks], None]:
    return lambda disks: disks.journal.cut(disks.files()[number], size)


def lose_marks(disks: Disks) -> None:
    for path in disks.journal.paths():
        if "mark" in path:
            disks.journal.overwrite(path, 10, b"rubbish")


@pytest.mark.parametrize(
    ("damage", "lost"),
    [
        (flip(0, FILE_HEADER_SIZE + 80), {(L1, 2), (L1, 3)}),
        (flip(0, FILE_HEADER_SIZE + 3), {(L1, 2), (L1, 3)}),
        (flip(0, 3), set()),
        (cut(1, FILE_HEADER_SIZE + 20), {(L2, 0), (L2, 1), (L2, 2)}),
        (lose(1), {(L2, 0), (L2, 1), (L2, 2)}),
        (lose(2), set()),
        (lose(3), {(L3, 0)}),
        (lose_marks, set()),
    ],
    ids=[
        "record",
        "batch header",
        "file header",
        "cut",
        "file with a key",
        "file with a fence",
        "file with a ledger",
        "marks",
    ],
)
async def test_readable_entries_are_served_and_the_rest_is_unknown(
    damage: Callable[[Disks], None], lost: set[tuple[LedgerId, int]]
) -> None:
    disks = await used()
    damage(disks)
    with pytest.raises(DamagedJournalError, match="bkheal bookie salvage-journal"):
        await disks.open()
    found = await disks.salvaged()
    assert found.findings.finding_count == (0 if damage is lose_marks or "lose" in damage.__qualname__ else 1)
    store = await disks.open()
    assert await store.limbo_ids() == sorted({L1, L2, L3} - ({L3} if lost == {(L3, 0)} else set()))
    acknowledged = {(ledger_id, entry_id) for ledger_id, ids in ACKNOWLEDGED.items() for entry_id in ids}
    assert await check(store) == acknowledged - lost
    assert (await listed(store, L1))[0] is Status.LIMBO
    assert await listed(store, L4) == (Status.OK, [])  # L4 was collected, and stays fenced
    assert (await store.add(AddBatch(L4, KEY, [raw_entry(L4, 1)]))).status is Status.FENCED
    await store.close()


async def test_no_ledger_is_skipped_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(salvaging, "_PAGE_KEYS", 2)
    disks, ledger_ids = Disks(), [LedgerId(number) for number in range(7)]
    store = await disks.open()
    for ledger_id in ledger_ids:
        await add(store, ledger_id, 0)
    await store.checkpoint()
    await add(store, ledger_ids[0], 1)
    await store.abort()
    disks = disks.copy()
    lose_marks(disks)
    assert (await disks.salvaged()).ledgers == 7
    store = await disks.open()
    assert await store.limbo_ids() == ledger_ids
    for ledger_id in ledger_ids:
        assert (await store.add(AddBatch(ledger_id, KEY, [raw_entry(ledger_id, 5)]))).status is Status.LIMBO
    await store.close()


async def test_the_salvaged_store_accepts_repair_adds_and_survives_a_crash() -> None:
    disks = await used()
    lose(0)(disks)
    await disks.salvaged()
    store = await disks.open()
    await add(store, L1, 2, 3, is_recovery=True)
    await store.abort()
    again = await disks.copy().open()
    assert await listed(again, L1) == (Status.LIMBO, list(range(6)))
    assert await check(again) == {(each, number) for each, numbers in ACKNOWLEDGED.items() for number in numbers}
    await again.close()
    assert await damage_of([disks.copy().journal], disks.copy().index) is None


async def test_a_file_that_the_device_cannot_read_is_damage_and_the_others_are_kept() -> None:
    disks = await used()
    bad = disks.files()[0]

    async def before(operation: Operation, path: str) -> None:
        if operation is Operation.READ and path == bad:
            raise DiskError("input/output error")

    disks.journal.before = before
    with pytest.raises(DamagedJournalError, match=r"cannot be read.*salvage-journal"):
        await disks.open()
    found = await disks.salvaged()
    assert "input/output error" in found.findings.findings[0].what
    store = await disks.open()
    assert {entry_id for ledger_id, entry_id in await check(store) if ledger_id == L1} == {0, 1, 4, 5}
    await store.close()


async def test_a_salvage_that_is_interrupted_at_any_step_can_be_repeated() -> None:
    steps = 0
    for at in range(200):
        disks = await used()
        flip(0, FILE_HEADER_SIZE + 80)(disks)
        left = at

        async def before(operation: Operation, path: str) -> None:
            nonlocal left, steps
            if operation in (Operation.READ, Operation.LIST, Operation.INDEX_READ, Operation.OPEN):
                return
            left -= 1
            if left < 0:
                raise KeyboardInterrupt

        disks.ledgers.before = disks.index.before = before
        rng = random.Random(at)
        try:
            await salvage([disks.journal], disks.ledgers, disks.index, SETTINGS)
        except KeyboardInterrupt:
            steps += 1
        else:
            break
        crashed = disks.copy()
        crashed.journal = disks.journal.restarted()
        crashed.ledgers, crashed.index = disks.ledgers.crash(rng), disks.index.crash(rng)
        await crashed.salvaged()
        store = await crashed.open()
        assert len(await check(store)) == 8
        await store.close()
    assert 5 < steps < 100


async def outcome(disks: Disks) -> str:
    """Return the result of a start on the disks; if it is refused, salvage them."""
    try:
        store = await disks.open()
    except DamagedJournalError:
        await disks.salvaged()
        store = await disks.open()
        await check(store)
        await store.close()
        return "salvaged"
    await check_whole(store)
    await store.close()
    return "opened"


async def test_random_flips_and_truncations_never_give_wrong_data_or_an_unopenable_store() -> None:
    used_disks = await used()
    rng = random.Random(7)
    outcomes = Counter[str]()
    for _ in range(300):
        disks = used_disks.copy()
        for path in rng.sample(disks.journal.paths(), rng.choice((1, 1, 2))):
            size = len(disks.journal.content(path))
            match rng.randrange(3):
                case 0:
                    disks.journal.flip_bit(path, rng.randrange(size * 8))
                case 1:
                    disks.journal.cut(path, rng.randrange(size))
                case _:
                    offset = rng.randrange(size)
                    disks.journal.overwrite(path, offset, rng.randbytes(rng.randint(1, size - offset)))
        outcomes[await outcome(disks)] += 1
    assert min(outcomes["opened"], outcomes["salvaged"]) > 10


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_no_truncation_or_flipped_bit_of_the_journal_gives_wrong_data() -> None:
    used_disks = await used()
    outcomes = Counter[str]()
    for path in used_disks.journal.paths():
        size = len(used_disks.journal.content(path))
        for place in range(size):
            for bit in (None, *range(8)):
                disks = used_disks.copy()
                if bit is None:
                    disks.journal.cut(path, place)
                else:
                    disks.journal.flip_bit(path, place * 8 + bit)
                outcomes[await outcome(disks)] += 1
    assert min(outcomes["opened"], outcomes["salvaged"]) > 1000


async def damaged_log_is_served_in_part(logs: Disks, path: str, place: int, bit: int | None) -> None:
    """Cut or change an entry log on a copy of the disks, and read everything."""
    disks = logs.copy()
    if bit is None:
        disks.ledgers.cut(path, place)
    else:
        disks.ledgers.flip_bit(path, place * 8 + bit)
    store = await disks.open()
    for ledger_id, entry_ids in ACKNOWLEDGED.items():
        for entry_id, (status, packet) in zip(entry_ids, await read(store, ledger_id, *entry_ids), strict=True):
            assert (status, packet) == (Status.OK, raw_entry(ledger_id, entry_id)) or status is Status.CORRUPT
        assert (await listed(store, ledger_id)) == (Status.OK, list(entry_ids))
    await store.close()


async def logs_in_use() -> Disks:
    disks = await used()
    await (await disks.open()).close()
    return disks.copy()


async def test_a_truncated_or_changed_entry_log_is_served_without_damaged_entries() -> None:
    logs, rng = await logs_in_use(), random.Random(9)
    for _ in range(100):
        path = rng.choice(logs.ledgers.paths())
        place = rng.randrange(len(logs.ledgers.content(path)))
        await damaged_log_is_served_in_part(logs, path, place, rng.choice((None, rng.randrange(8))))


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_no_truncation_or_flipped_bit_of_an_entry_log_gives_wrong_data() -> None:
    logs = await logs_in_use()
    for path in logs.ledgers.paths():
        for place in range(len(logs.ledgers.content(path))):
            for bit in (None, *range(8)):
                await damaged_log_is_served_in_part(logs, path, place, bit)


async def test_a_salvage_restores_no_old_version_from_a_log_cut_off_by_a_full_disk() -> None:
    disks, sizes = Disks(), replace(SETTINGS, flush_page_entries=1, flush_sync_entries=1)
    store = await LedgerStorage.open(disks.journal, disks.ledgers, disks.index, sizes, ManualClock(turns=1))
    await add(store, L1, *range(4))
    disks.ledgers.capacity_bytes = HEADER_SIZE + 2 * (RECORD_HEADER_SIZE + len(raw_entry(L1, 0)))
    with pytest.raises(DiskFullError):
        await store.checkpoint()
    disks.ledgers.capacity_bytes = 1 << 40
    await store.checkpoint()
    while store.is_full:  # noqa: ASYNC110 (turns of the loop)
        await asyncio.sleep(0)
    newer = raw_entry(L1, 0, b"newer")
    assert (await store.add(AddBatch(L1, KEY, [newer], is_recovery=True))).status is Status.OK
    await store.checkpoint()
    await store.abort()
    disks = disks.copy()
    lose_marks(disks)
    await disks.salvaged()
    again = await disks.open()
    expected = [newer, *(raw_entry(L1, number) for number in range(1, 4))]
    assert await read(again, L1, *range(4)) == [(Status.OK, data) for data in expected]
    await again.close()


async def test_entries_that_the_index_lost_after_the_journal_was_trimmed_are_served_again() -> None:
    disks = Disks()
    store = await disks.open()
    await add(store, L1, 0, 1)
    await store.checkpoint()
    older = disks.index.restarted()
    await add(store, L1, 2, 3)
    await add(store, L2, 0)
    await store.checkpoint()
    await store.abort()
    disks = disks.copy()
    disks.index = older  # the last writes of the index were not durable
    with pytest.raises(DamagedJournalError):
        await disks.open()
    for _ in range(2):  # the second time, it is repeated
        found = await salvage([disks.journal], disks.ledgers, disks.index, SETTINGS)
    for path in disks.journal.paths():
        disks.journal.lose(path)
    await begin_journals([disks.journal], disks.index, found.epoch + 1)
    for _ in range(2):
        store = await disks.open()
        assert store.ledger_count == 2
        for ledger_id, ids in ((L1, range(4)), (L2, range(1))):
            assert await listed(store, ledger_id) == (Status.LIMBO, list(ids))
            assert await read(store, ledger_id, *ids) == [(Status.OK, raw_entry(ledger_id, each)) for each in ids]
        await store.abort()
        disks = disks.copy()


async def test_the_last_version_is_served_if_the_index_lost_the_writes_of_several_flushes() -> None:
    disks = Disks()
    store = await disks.open()
    await add(store, L1, 0)
    await store.checkpoint()
    older = disks.index.restarted()
    versions = [raw_entry(L1, 0, b"version %d" % number) for number in range(3)]
    for version in versions:
        assert (await store.add(AddBatch(L1, KEY, [version], is_recovery=True))).status is Status.OK
        await store.checkpoint()
    await store.abort()
    disks = disks.with_index(older)
    for _ in range(2):  # the second time, it is repeated
        await salvage([disks.journal], disks.ledgers, disks.index, SETTINGS)
    await disks.salvaged()
    store = await disks.open()
    assert await read(store, L1, 0) == [(Status.OK, versions[-1])]
    await store.compact(1.0)
    assert await log_ids(disks.ledgers) == [4]
    await store.close()


async def test_a_salvage_restores_no_old_version_from_an_unfinished_compaction() -> None:
    disks, syncs = Disks(), 0
    store = await disks.open()
    await add(store, L1, *range(3))
    await add(store, L2, *range(10))
    await store.checkpoint()
    await collect(store, L2)
    await store.checkpoint()

    async def full_after_the_first_page(operation: Operation, path: str) -> None:
        nonlocal syncs
        syncs += operation is Operation.SYNC and path == log_path(2)
        if syncs == 3:
            raise DiskFullError("no space left")

    disks.ledgers.before = full_after_the_first_page
    with inject_faults(lambda name: name == "compaction.tiny_page"), pytest.raises(DiskFullError):
        await store.compact()
    disks.ledgers.before = yield_control
    while store.is_full:  # noqa: ASYNC110 (turns of the loop)
        await asyncio.sleep(0)
    newer = raw_entry(L1, 0, b"newer")
    assert (await store.add(AddBatch(L1, KEY, [newer], is_recovery=True))).status is Status.OK
    await store.checkpoint()
    await store.abort()
    disks = disks.copy()
    assert log_path(2) in disks.ledgers.paths()
    lose_marks(disks)
    await disks.salvaged()
    store = await disks.open()
    assert await read(store, L1, 0, 1) == [(Status.OK, newer), (Status.OK, raw_entry(L1, 1))]
    await store.close()


@pytest.mark.parametrize("is_trimmed", [True, False])
async def test_entries_moved_by_compaction_are_served_whichever_writes_the_index_lost(is_trimmed: bool) -> None:
    disks, older = Disks(), list[MemoryIndex]()

    async def before(operation: Operation, path: str) -> None:
        if operation is Operation.INDEX_WRITE:
            older.append(disks.index.restarted())

    store = await disks.open()
    await add(store, L1, 0, 1)
    await add(store, L4, *range(6))
    await store.checkpoint()
    await add(store, L2, 0)
    await store.checkpoint()
    await collect(store, L4)
    await store.checkpoint()
    disks.index.before = before
    assert (await store.compact()).removed_logs
    if is_trimmed:
        await add(store, L1, 2, 3)
        await store.checkpoint()
        await add(store, L2, 1)
        await store.checkpoint()
    await store.abort()
    disks.index.before = yield_control
    outcomes = Counter[bool]()
    for index in older:
        copy = disks.with_index(index)
        is_damaged = await damage_of([copy.journal], copy.index) is not None
        if is_damaged:
            await copy.salvaged()
        outcomes[is_damaged] += 1
        store = await copy.open()
        for ledger_id, ids in ((L1, range(4 if is_trimmed else 2)), (L2, range(1 + is_trimmed))):
            assert await read(store, ledger_id, *ids) == [(Status.OK, raw_entry(ledger_id, each)) for each in ids]
        await store.compact(1.0)
        await store.abort()
        store = await copy.copy().open()
        assert await read(store, L1, 0, 1) == [(Status.OK, raw_entry(L1, each)) for each in range(2)]
        await store.close()
    assert outcomes[is_trimmed] > 3


async def test_the_copy_of_a_repair_is_used_if_the_index_lost_its_location() -> None:
    disks = Disks()
    store = await disks.open()
    await add(store, L1, 0, 1)
    await store.checkpoint()
    older = disks.index.restarted()
    await add(store, L1, 0, is_recovery=True)
    await store.checkpoint()
    await store.abort()
    disks = disks.with_index(older)
    disks.ledgers.flip_bit(log_path(1), (HEADER_SIZE + RECORD_HEADER_SIZE + 35) * 8)
    for _ in range(2):  # the second time, it is repeated
        await salvage([disks.journal], disks.ledgers, disks.index, SETTINGS)
    await disks.salvaged()
    store = await disks.open()
    assert await read(store, L1, 0, 1) == [(Status.OK, raw_entry(L1, each)) for each in range(2)]
    await store.close()


async def test_restored_entries_of_a_collected_ledger_can_be_collected_again() -> None:
    disks = Disks()
    store = await disks.open()
    await add(store, L1, 0)
    await store.checkpoint()
    await collect(store, L1)
    await store.checkpoint()
    older = disks.index.restarted()
    await add(store, L1, 1, is_recovery=True)
    await store.checkpoint()
    await store.abort()
    disks = disks.with_index(older)
    await disks.salvaged()
    store = await disks.open()
    assert await listed(store, L1) == (Status.LIMBO, [1])
    assert await store.ledger_ids() == [L1]
    await store.close()


async def test_a_usable_journal_has_no_damage_and_a_lost_index_is_not_replaced() -> None:
    disks = await used()
    assert await damage_of([disks.journal], disks.index) is None
    for asked in (
        damage_of([disks.journal], MemoryIndex()),
        salvage([disks.journal], disks.ledgers, MemoryIndex(), SETTINGS),
    ):
        with pytest.raises(LostIndexError, match="lost as well"):
            await asked


async def test_files_with_other_names_do_not_belong_to_the_journal() -> None:
    disks = await used()
    file = await disks.journal.create(f"{DIRECTORY}/copy.journal")
    await file.append([b"rubbish"])
    store = await disks.open()
    await check_whole(store)
    await store.close()


@pytest.mark.parametrize("is_index_lost", [False, True])
@pytest.mark.parametrize("seed", range(6))
async def test_entries_copied_by_a_killed_compaction_are_durable_before_they_are_indexed(
    seed: int, is_index_lost: bool
) -> None:
    """The copies are only in the page cache, and the power fails after the salvage or the rebuild of the index."""
    disks = await killed_in_compaction()
    if is_index_lost:
        disks.index = MemoryIndex()
        await rebuild([disks.journal], disks.ledgers, disks.index)
    else:
        for path in disks.journal.paths():
            disks.journal.lose(path)
        await disks.salvaged()
    store = await disks.open()
    await store.abort()
    rng = random.Random(seed)
    store = await opened(disks.journal.crash(rng), disks.ledgers.crash(rng), disks.index.crash(rng))
    assert [status for status, _ in await read(store, L1, *range(5))] == [Status.OK] * 5
    await store.close()


async def killed_in_compaction() -> Disks:
    """Return a store with five entries, killed after a compaction copied them and before the new log was synced."""
    disks = Disks()
    store = await disks.open()
    await add(store, L1, *range(5))
    await add(store, L2, *range(20))
    await store.checkpoint()
    await collect(store, L2)
    await store.checkpoint()
    is_copied, syncs = asyncio.Event(), 0

    async def stop_at_the_second_sync(operation: Operation, path: str) -> None:
        nonlocal syncs
        syncs += operation is Operation.SYNC and path.endswith(".log")
        if syncs == 2:
            is_copied.set()
            await asyncio.Event().wait()

    disks.ledgers.before = stop_at_the_second_sync
    compacting = asyncio.ensure_future(store.compact())
    await is_copied.wait()
    compacting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await compacting
    await store.abort()
    return disks.copy()
