"""Reads of recoveries have priority, but other reads do not wait for ever."""

from __future__ import annotations

import asyncio

from bookie.model.ids import EntryId, LedgerId
from bookie.runtime.tasks import cancel, guarded
from bookie.server.read_places import URGENT_IN_A_ROW_MAX, ReadPlaces
from bookie.server.service import ServiceLimits
from bookie.storage.settings import StorageSettings
from bookie.wire.port import AddBatch, ReadReply, Status
from bookie.wire.requests import Read
from tests.unit.bookie.storage.test_rebuilding import KEY, L1
from tests.worlds.clocks import VirtualClock
from tests.worlds.cluster import open_bookie
from tests.worlds.entries import raw_entry
from tests.worlds.virtual_time import in_virtual_time


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


class Reads:
    """Reads that hold their places until the test ends them, in the order in which they got the places."""

    def __init__(self, count: int) -> None:
        self.places = ReadPlaces(count)
        self.began: list[str] = []
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def begin(self, *names: str) -> None:
        for name in names:
            self._tasks[name] = guarded("read", self._read(name))
        await settle()

    async def _read(self, name: str) -> None:
        async with self.places.place(is_urgent=name.startswith("recovery")):
            self.began.append(name)
            await asyncio.Event().wait()

    async def end(self, *names: str) -> None:
        for name in names or list(self._tasks):
            await cancel(self._tasks.pop(name))
        await settle()


@in_virtual_time
async def test_a_waiting_recovery_goes_next() -> None:
    reads = Reads(1)
    await reads.begin("a", "b", "c", "recovery 1", "recovery 2")
    assert (reads.began, reads.places.waiting) == (["a"], 4)
    await reads.end("a")
    await reads.end("recovery 1")
    assert reads.began == ["a", "recovery 1", "recovery 2"]
    await reads.end("recovery 2")
    await reads.end("b")
    assert reads.began[3:] == ["b", "c"]
    await reads.end()
    assert (reads.places.taken, reads.places.waiting) == (0, 0)


@in_virtual_time
async def test_some_slots_are_reserved_for_recoveries() -> None:
    reads = Reads(16)
    await reads.begin(*map(str, range(20)))
    assert reads.places.taken == 14
    await reads.begin("recovery 1", "recovery 2", "recovery 3")
    assert (reads.places.taken, reads.began[14:]) == (16, ["recovery 1", "recovery 2"])
    await reads.end()


@in_virtual_time
async def test_other_reads_get_their_turn_among_many_recoveries() -> None:
    reads = Reads(1)
    await reads.begin("a", "b", *(f"recovery {number}" for number in range(2 * URGENT_IN_A_ROW_MAX)))
    for _ in range(URGENT_IN_A_ROW_MAX + 1):
        await reads.end(reads.began[-1])
    assert reads.began.index("b") == URGENT_IN_A_ROW_MAX + 1
    await reads.end()


@in_virtual_time
async def test_a_read_that_no_client_awaits_any_more_takes_no_slot() -> None:
    reads = Reads(1)
    await reads.begin("a", "b", "c")
    await reads.end("b")
    await reads.end("a")
    assert reads.began == ["a", "c"]
    await reads.end()
    assert reads.places.taken == 0


@in_virtual_time
async def test_a_bookie_answers_a_recovery_before_waiting_reads() -> None:
    bookie = await open_bookie(VirtualClock(), settings=StorageSettings(), limits=ServiceLimits(reads_max=1))
    assert (await bookie.service.add("", AddBatch(L1, KEY, [raw_entry(L1, 0)]))).status is Status.OK
    answered: list[str] = []

    async def ask(name: str, fence_key: bytes | None = None) -> ReadReply:
        reply = await bookie.service.answer("", Read(LedgerId(1), [EntryId(0)], fence_key))
        answered.append(name)
        return reply

    assert (await ask("first", KEY)).status is Status.OK  # the fence is durable, so the next fence needs no write
    await bookie.storage.checkpoint()
    answered.clear()
    await asyncio.gather(*(ask(f"client {number}") for number in range(100)), ask("recovery", KEY))
    assert answered.index("recovery") < 50
    await bookie.storage.abort()


async def test_a_read_that_is_cancelled_right_after_it_got_a_slot_releases_it() -> None:
    for is_urgent in (True, False):
        places = ReadPlaces(1)
        await places.take(is_urgent=False)
        waiting = asyncio.ensure_future(places.take(is_urgent=is_urgent))
        await settle()
        places.release()
        waiting.cancel()
        await asyncio.wait([waiting])
        assert (places.taken, places.waiting) == (0, 0)
        async with asyncio.timeout(60), places.place(is_urgent=False):
            assert places.taken == 1
