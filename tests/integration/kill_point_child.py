"""A process that stores, fences, deletes and compacts up to a named kill point. ``test_kill_points.py`` runs it.

Arguments: the folder of the store, the number of this life, the number of journals and of ledger directories.

``KILL_AT=name:count`` in the environment selects the point: the process sends itself SIGKILL when it reaches the point
for the count-th time. The points are in adapters around the disk and the index, so the product code has no hooks for
tests.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from typing_extensions import override

from bookie.model.ids import EntryId, LedgerId
from bookie.runtime.clock import SystemClock
from bookie.storage.disks.files import FileDisk
from bookie.storage.disks.index_format import MARK_KEY
from bookie.storage.disks.rocks import RocksIndex
from bookie.storage.disks.spread import SpreadDirectory, SpreadDisk
from bookie.storage.port import Disk, DiskFile, EntryIndex
from bookie.storage.settings import StorageSettings
from bookie.storage.store import LedgerStorage
from bookie.wire.port import AddBatch, Status
from tests.worlds.entries import raw_entry

SETTINGS: Final = StorageSettings(
    cache_bytes_max=64 << 10, journal_file_bytes=64 << 10, compact_bytes_per_s=1 << 40, journal_mark_after_s=0.02
)
"""Small settings, so that flushes, new journal files, trims and compactions occur in a short life."""
ENTRIES: Final = 10
BATCHES: Final = 4
LEDGERS_PER_RUN: Final = 300
"""The most ledgers of a life. A process that reaches its kill point never writes as many."""
NOT_REACHED: Final = 3
"""The exit code of a process that did not reach its kill point."""
_PAYLOAD: Final = b"x" * 700
_STEPS: Final = (
    "journal.write", "journal.sync", "journal.rename", "journal.create", "journal.directory", "journal.trim",
    "entry_log.write", "entry_log.sync", "entry_log.create", "entry_log.directory", "entry_log.remove",
    "index.update", "checkpoint", "deletion", "compaction.write", "compaction.sync", "compaction.update",
)  # fmt: skip
POINTS: Final = tuple(f"{step}.{side}" for step in _STEPS for side in ("before", "after"))


class KillSwitch:
    """Kills this process when it reaches ``name`` for the ``count``-th time, perhaps in a thread of the disk."""

    def __init__(self, name: str, count: int) -> None:
        self._name = name
        self._left = count
        self._lock = threading.Lock()
        self.phase = ""

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        self.reach(f"{name}.before")
        yield
        self.reach(f"{name}.after")

    def reach(self, name: str) -> None:
        with self._lock:
            if name == self._name:
                self._left -= 1
                if self._left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)


class KillingFile(DiskFile):
    """A file with kill points at writes and syncs. A group commit is a write and a sync with a point between them."""

    def __init__(self, file: DiskFile, role: str, switch: KillSwitch) -> None:
        self._file = file
        self._role = role
        self._switch = switch

    @override
    async def append(self, parts: Sequence[bytes]) -> int:
        with self._switch.step(f"{self._phase()}.write"):
            return await self._file.append(parts)

    @override
    async def sync(self) -> None:
        with self._switch.step(f"{self._phase()}.sync"):
            await self._file.sync()

    @override
    async def append_and_sync(self, parts: Sequence[bytes]) -> int:
        size = await self.append(parts)
        await self.sync()
        return size

    @override
    async def reserve(self, ahead: int) -> None:
        await self._file.reserve(ahead)

    @override
    async def read(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return await self._file.read(ranges)

    @override
    async def size(self) -> int:
        return await self._file.size()

    @override
    async def close(self) -> None:
        await self._file.close()

    def _phase(self) -> str:
        return "compaction" if self._role == "entry_log" and self._switch.phase == "compaction" else self._role


class KillingDisk(Disk):
    """A disk with a kill point at each change, named after its role (``journal`` or ``entry_log``)."""

    def __init__(self, disk: FileDisk, role: str, switch: KillSwitch) -> None:
        self._disk = disk
        self._role = role
        self._switch = switch

    @override
    async def create(self, path: str) -> DiskFile:
        with self._switch.step(f"{self._role}.create"):
            file = await self._disk.create(path)
        return KillingFile(file, self._role, self._switch)

    @override
    async def open(self, path: str) -> DiskFile:
        return KillingFile(await self._disk.open(path), self._role, self._switch)

    @override
    async def replace(self, path: str, data: bytes) -> None:
        await self._disk.replace(path, data)  # the kill points are at the rename itself, see ``watch_renames``

    @override
    async def names(self, directory: str) -> list[str]:
        return await self._disk.names(directory)

    @override
    async def make_directory(self, path: str) -> None:
        await self._disk.make_directory(path)

    @override
    async def unlink(self, path: str) -> None:
        with self._switch.step("journal.trim" if self._role == "journal" else "entry_log.remove"):
            await self._disk.unlink(path)

    @override
    async def sync_directory(self, directory: str) -> None:
        with self._switch.step(f"{self._role}.directory"):
            await self._disk.sync_directory(directory)

    @override
    async def space(self) -> tuple[int, int]:
        """Return the space with 1 MiB more in use per entry log, so that logs are spread within one file system."""
        total, free = await self._disk.space()
        if self._role != "entry_log":
            return total, free
        return total, total - (len(await self._disk.names("entries")) << 20)

    async def close(self) -> None:
        await self._disk.close()


class KillingIndex(EntryIndex):
    """An index with kill points at its batches, which are named after their purpose."""

    def __init__(self, index: RocksIndex, switch: KillSwitch) -> None:
        self._index = index
        self._switch = switch

    @override
    async def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return await self._index.get_many(keys)

    @override
    async def range(self, first_key: bytes, end_key: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        return await self._index.range(first_key, end_key, limit)

    @override
    async def keys(self, first_key: bytes, end_key: bytes, limit: int) -> list[bytes]:
        return await self._index.keys(first_key, end_key, limit)

    @override
    async def last(self, first_key: bytes, end_key: bytes) -> tuple[bytes, bytes] | None:
        return await self._index.last(first_key, end_key)

    @override
    async def write(self, puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes] = ()) -> None:
        if any(key == MARK_KEY for key, _ in puts):
            name = "checkpoint"
        else:
            name = {"compaction": "compaction.update", "deletion": "deletion"}.get(self._switch.phase, "index.update")
        with self._switch.step(name):
            await self._index.write(puts, deletes)

    @override
    async def reopen(self) -> None:
        await self._index.reopen()

    @override
    async def close(self) -> None:
        await self._index.close()


def watch_renames(switch: KillSwitch) -> None:
    """Make the rename of a replaced file a kill point, between the sync of the new file and that of the directory."""
    rename = Path.rename

    def watched(path: Path, target: Path) -> Path:
        with switch.step("journal.rename"):
            return rename(path, target)

    Path.rename = watched  # type: ignore[method-assign,assignment]


def entry(ledger_id: int, entry_id: int) -> bytes:
    return raw_entry(ledger_id, entry_id, b"%d" % (ledger_id * 1000 + entry_id) + _PAYLOAD)


def key(ledger_id: int) -> bytes:
    return b"key of %d" % ledger_id


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


class ChildRun:
    """One life of the store: it writes ledgers, fences some of them, and deletes two of three."""

    def __init__(self, store: LedgerStorage, switch: KillSwitch) -> None:
        self.store = store
        self._switch = switch

    async def run(self, first: int) -> None:
        for number in range(first, first + LEDGERS_PER_RUN, 3):
            await asyncio.gather(*(self._write(LedgerId(number + turn)) for turn in range(3)))
            for ledger_id in (number, number + 2):
                await self.delete(LedgerId(ledger_id))
            await self.compact()
            for ledger_id in (number, number + 2):
                say("deleted", ledger_id)  # only now: before a checkpoint, a crash may restore entries from the journal

    async def _write(self, ledger_id: LedgerId) -> None:
        for batch in range(BATCHES):
            numbers = range(batch * ENTRIES, (batch + 1) * ENTRIES)
            request = AddBatch(ledger_id, key(ledger_id), [entry(ledger_id, number) for number in numbers])
            reply = await self.store.add(request)
            if reply.status is Status.TOO_MANY_REQUESTS:
                await self.store.checkpoint()  # this frees space
                reply = await self.store.add(request)
            assert reply.status is Status.OK, reply
            say("added", ledger_id, batch)
        if ledger_id % 2:
            assert (await self.store.fence(ledger_id, key(ledger_id))).status is Status.OK
            say("fenced", ledger_id)

    async def delete(self, ledger_id: LedgerId) -> None:
        say("deleting", ledger_id)
        self._switch.phase = "deletion"
        assert await self.store.collect(ledger_id, self.store.mark(ledger_id))
        self._switch.phase = ""

    async def compact(self) -> None:
        await self.store.checkpoint()
        self._switch.phase = "compaction"
        await self.store.compact()
        self._switch.phase = ""


async def open_store(
    root: Path, switch: KillSwitch, journals: int, ledger_dirs: int
) -> tuple[LedgerStorage, list[KillingDisk]]:
    async def acquired(name: str, role: str, number: int) -> KillingDisk:
        path = root / (name if number == 1 else f"{name}-{number}")
        return KillingDisk(await FileDisk.acquire(path), role, switch)

    clock = SystemClock()
    first, *others = [await acquired("journal", "journal", number + 1) for number in range(journals)]
    places = [await acquired("ledgers", "entry_log", number + 1) for number in range(ledger_dirs)]
    ledgers: Disk = places[0]
    if ledger_dirs > 1:
        ledgers = await SpreadDisk.over([SpreadDirectory(str(n), disk) for n, disk in enumerate(places)], clock)
    index = KillingIndex(await RocksIndex.open(root / "ledgers" / "index"), switch)
    store = await LedgerStorage.open(first, ledgers, index, SETTINGS, clock, more_journals=others)
    return store, [first, *others, *places]


async def verify(store: LedgerStorage, acknowledged: Sequence[Sequence[str]]) -> None:
    """Check every acknowledgement of earlier lives, and that the store serves only sent entries."""
    reported: dict[str, set[tuple[int, ...]]] = {kind: set() for kind in ("added", "fenced", "deleting", "deleted")}
    for kind, *numbers in acknowledged:
        reported[kind].add(tuple(map(int, numbers)))
    for ledger_id, batch in reported["added"]:
        if (ledger_id,) not in reported["deleting"]:
            wanted = [EntryId(number) for number in range(batch * ENTRIES, (batch + 1) * ENTRIES)]
            reply = await store.read(LedgerId(ledger_id), wanted)
            assert [result.packet for result in reply.results] == [entry(ledger_id, n) for n in wanted], (
                ledger_id,
                reply,
            )
    for (ledger_id,) in reported["deleted"]:
        assert not (await store.list_entries(LedgerId(ledger_id))).entries, f"{ledger_id} exists again"
    for (ledger_id,) in reported["fenced"] | reported["deleted"]:
        reply_add = await store.add(AddBatch(LedgerId(ledger_id), key(ledger_id), [entry(ledger_id, 0)]))
        assert reply_add.status is Status.FENCED, (ledger_id, reply_add)
    await _verify_listed(store)


async def _verify_listed(store: LedgerStorage) -> None:
    after = -1
    while page := await store.ledger_ids(after):
        after = page[-1]
        for ledger_id in page:
            listed = [EntryId(number) for number in (await store.list_entries(ledger_id)).entries]
            reply = await store.read(ledger_id, listed)
            assert [result.packet for result in reply.results] == [entry(ledger_id, number) for number in listed]


async def end(store: LedgerStorage, switch: KillSwitch, root: Path) -> None:
    """Delete every ledger, compact, and print the remaining bytes of entry logs and of the journal."""
    life = ChildRun(store, switch)
    while page := await store.ledger_ids():
        for ledger_id in page:
            await life.delete(ledger_id)
    await life.compact()
    await store.checkpoint()
    left = {
        name: sum(
            path.stat().st_size for path in root.glob(f"{name}*/**/*") if path.is_file() and "index" not in path.parts
        )
        for name in ("journal", "ledgers")
    }
    say("left", left["journal"], left["ledgers"])


async def main(root: Path, life: int, journals: int, ledger_dirs: int) -> int:
    name, _, count = os.environ.get("KILL_AT", ":0").partition(":")
    switch = KillSwitch(name, int(count))
    watch_renames(switch)
    store, disks = await open_store(root, switch, journals, ledger_dirs)
    acknowledged = [line.split() for line in (root / "acknowledged").read_text().splitlines()]
    await verify(store, acknowledged)
    say("verified")
    if name:
        await ChildRun(store, switch).run(life * 1000)
    else:
        await end(store, switch, root)
    await store.close()
    for disk in disks:
        await disk.close()
    return NOT_REACHED if name else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(Path(sys.argv[1]), *map(int, sys.argv[2:]))))
