"""Request handling around the storage: what the transport contract does not reach from outside."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from bookie.model.digest import digest_for
from bookie.model.ids import NO_ENTRY, EntryId, LedgerId
from bookie.model.metadata import DigestType
from bookie.model.packet import pack
from bookie.runtime.clock import SystemClock
from bookie.server.service import BookieIdentity, BookieService, ServiceLimits
from bookie.storage.memory import MemoryDisk, MemoryIndex, Operation, give_way
from bookie.storage.port import DiskError
from bookie.storage.settings import StorageSettings
from bookie.storage.store import LedgerStorage
from bookie.wire.port import AddBatch, AddReply, Status

LEDGER = LedgerId(3)
KEY = b"key"
DIGEST = digest_for(DigestType.CRC32C, b"")
DEADLINE_S = 20.0
"""Never reached where the test passes."""


class Gate:
    """A ``before`` hook that holds one kind of operation back."""

    def __init__(self, held: Operation) -> None:
        self.has_begun = asyncio.Event()
        self._held = held
        self._may_go = asyncio.Event()

    async def __call__(self, operation: Operation, path: str) -> None:
        if operation is self._held:
            self.has_begun.set()
            await self._may_go.wait()

    def open(self) -> None:
        self._may_go.set()


class Bookie:
    def __init__(self, storage: LedgerStorage, journal: MemoryDisk, ledgers: MemoryDisk, index: MemoryIndex) -> None:
        self.storage, self.journal, self.ledgers, self.index = storage, journal, ledgers, index
        limits = ServiceLimits(add_bytes_max=1000, reads_max=2)
        self.service = BookieService(storage, ledgers, BookieIdentity("uuid", "1"), limits)

    async def add(self, entry_id: int, size: int = 10) -> AddReply:
        entry = pack(DIGEST, LEDGER, EntryId(entry_id), NO_ENTRY, size, bytes(size))
        return await self.service.add("uuid", AddBatch(LEDGER, KEY, [entry]))

    def adding(self, entry_id: int, size: int = 10) -> asyncio.Task[AddReply]:
        return asyncio.create_task(self.add(entry_id, size))


@pytest.fixture
async def bookie() -> AsyncIterator[Bookie]:
    journal, ledgers, index = MemoryDisk(), MemoryDisk(), MemoryIndex()
    storage = await LedgerStorage.open(journal, ledgers, index, StorageSettings(), SystemClock())
    yield Bookie(storage, journal, ledgers, index)
    journal.before = index.before = give_way
    await storage.abort()


async def test_a_drain_waits_for_what_was_begun(bookie: Bookie) -> None:
    gate = bookie.journal.before = Gate(Operation.SYNC)
    add = bookie.adding(0)
    await gate.has_begun.wait()
    bookie.service.refuse_everything()
    assert (await bookie.add(1)).status is Status.SHUTTING_DOWN
    assert not await bookie.service.drain(deadline_s=0.0)
    gate.open()
    assert await bookie.service.drain(DEADLINE_S)
    assert (await add).status is Status.OK
    assert await bookie.service.drain(deadline_s=0.0)


async def test_a_request_whose_caller_is_gone_ends_all_the_same(bookie: Bookie) -> None:
    gate = bookie.journal.before = Gate(Operation.SYNC)
    fence = asyncio.create_task(bookie.service.fence("", LEDGER, KEY))
    await gate.has_begun.wait()
    fence.cancel()
    with pytest.raises(asyncio.CancelledError):
        await fence
    gate.open()
    assert await bookie.service.drain(DEADLINE_S)
    assert (await bookie.add(0)).status is Status.FENCED


async def test_room_is_given_back_whatever_became_of_the_add(bookie: Bookie) -> None:
    gate = bookie.journal.before = Gate(Operation.SYNC)
    waiting = [bookie.adding(n, size=400) for n in range(2)]
    await gate.has_begun.wait()
    assert (await bookie.add(2, size=400)).status is Status.TOO_MANY_REQUESTS
    waiting[0].cancel()
    gate.open()
    assert (await waiting[1]).status is Status.OK
    assert await bookie.service.drain(DEADLINE_S)
    assert (await bookie.add(2, size=400)).status is Status.OK
    assert (await bookie.add(3, size=5000)).status is Status.OK  # what is alone is never over the limit


async def test_reads_beyond_the_limit_wait_for_their_turn(bookie: Bookie) -> None:
    gate = bookie.index.before = Gate(Operation.INDEX_READ)
    reads = [asyncio.create_task(bookie.service.read("", LedgerId(n), [EntryId(0)])) for n in range(5)]
    await gate.has_begun.wait()
    gate.open()
    assert {(await read).status for read in reads} == {Status.OK}


async def test_a_bug_in_one_request_is_answered_and_logged(bookie: Bookie, caplog: pytest.LogCaptureFixture) -> None:
    async def bug(operation: Operation, path: str) -> None:
        raise ZeroDivisionError

    bookie.index.before = bug
    reply = await bookie.service.read_last("", LEDGER)
    assert (reply.status, "ZeroDivisionError" in reply.detail) == (Status.IO_ERROR, False)
    assert "ZeroDivisionError" in caplog.text
    bookie.index.before = give_way
    assert (await bookie.add(0)).status is Status.OK


async def test_a_device_that_does_not_answer_is_an_io_error(bookie: Bookie, monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_answer(disk: MemoryDisk) -> tuple[int, int]:
        raise DiskError("the device is gone")

    monkeypatch.setattr(MemoryDisk, "space", no_answer)
    assert (await bookie.service.info("")).status is Status.IO_ERROR


async def test_a_full_disk_is_read_only_by_itself(bookie: Bookie) -> None:
    bookie.journal.capacity_bytes = bookie.journal.used_bytes()
    assert (await bookie.add(0)).status is Status.READ_ONLY
