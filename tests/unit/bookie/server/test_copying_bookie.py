"""Copies that a bookie makes by itself: limits, sources that do not answer, and failures in the middle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

import pytest
from typing_extensions import override

from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import DigestType
from bookie.model.packet import PACKET_BYTES_MAX
from bookie.server import copying as module
from bookie.server.copying import Copying
from bookie.server.service import BookieService
from bookie.wire.port import (
    BATCH_BYTES_MAX,
    READ_BYTES_MAX,
    AddBatch,
    AddReply,
    CopyReply,
    EntryResult,
    ReadReply,
    ReplyT,
    Request,
    Status,
)
from bookie.wire.requests import Copy, Read
from tests.worlds.clocks import VirtualClock
from tests.worlds.cluster import open_bookie
from tests.worlds.entries import packed_entry
from tests.worlds.requests import WithoutAdds
from tests.worlds.virtual_time import in_virtual_time, until

LEDGER = LedgerId(3)
KEY = b"key"
SOURCE = BookieId("source")


def entry(entry_id: int, size: int = 100) -> bytes:
    return packed_entry(LEDGER, entry_id, bytes(size))


@dataclass
class Source(WithoutAdds):
    """The other bookies; only one of them is registered."""

    sizes: Callable[[int], int] = lambda entry_id: 100
    """The payload size of each entry, in bytes."""
    answers: asyncio.Event = field(default_factory=asyncio.Event)
    status: Status = Status.OK
    covered: int | None = None
    """The maximum number of entries in an answer."""
    missing: frozenset[int] = frozenset()
    """The entries that it lacks."""
    has_begun: asyncio.Event = field(default_factory=asyncio.Event)
    asked: list[tuple[BookieId, tuple[EntryId, ...], float]] = field(default_factory=list)

    @override
    async def ask(self, bookie: BookieId, request: Request[ReplyT], timeout_s: float) -> ReplyT:
        assert isinstance(request, Read)
        self.asked.append((bookie, tuple(request.entry_ids), timeout_s))
        self.has_begun.set()
        try:
            async with asyncio.timeout(timeout_s):
                await self.answers.wait()
        except TimeoutError:
            return cast(ReplyT, request.failed(Status.TIMEOUT, detail="silent"))
        ids = request.entry_ids[: self.covered]
        results = [
            EntryResult(n, Status.NO_ENTRY) if n in self.missing else EntryResult(n, Status.OK, entry(n, self.sizes(n)))
            for n in ids
        ]
        return cast(ReplyT, ReadReply(self.status, results))


@dataclass
class Stored:
    """Record the batches that the bookie should store, and answer for it."""

    replies: list[Status] = field(default_factory=list)
    batches: list[AddBatch] = field(default_factory=list)

    async def __call__(self, batch: AddBatch) -> AddReply:
        self.batches.append(batch)
        return AddReply(self.replies.pop(0) if self.replies else Status.OK)


def a_copy(*entry_ids: int, key: bytes = KEY) -> Copy:
    ids = [EntryId(n) for n in entry_ids or range(10)]
    return Copy(LEDGER, ids, SOURCE, key, DigestType.CRC32C, incarnation="uuid")


def answering(**options: object) -> Source:
    source = Source(**options)  # type: ignore[arg-type]
    source.answers.set()
    return source


@in_virtual_time
async def test_an_unreachable_source_times_out_soon_and_its_entries_are_unknown() -> None:
    source, clock, stored = Source(), VirtualClock(), Stored()
    began_s = clock.monotonic_s()
    reply = await Copying(source, clock).copy(a_copy(), stored)
    assert (reply.status, reply.source, reply.covered, list(reply.refusals)) == (Status.OK, Status.TIMEOUT, 0, [])
    assert clock.monotonic_s() - began_s == pytest.approx(module.SOURCE_TIMEOUT_S)
    assert reply.read_s == pytest.approx(module.SOURCE_TIMEOUT_S)
    assert not stored.batches


async def test_answers_of_a_source_before_its_failure_are_kept() -> None:
    source, stored = answering(status=Status.UNREACHABLE, covered=4), Stored()
    reply = await Copying(source, VirtualClock()).copy(a_copy(), stored)
    assert (reply.status, reply.source, reply.stored_count) == (Status.OK, Status.UNREACHABLE, 4)
    assert [len(batch.entries) for batch in stored.batches] == [4]


async def test_copies_are_batches_of_recovery_adds_up_to_the_first_failed_one() -> None:
    stored = Stored([Status.OK, Status.READ_ONLY])
    copying = Copying(answering(sizes=lambda _: BATCH_BYTES_MAX // 2), VirtualClock())
    reply = await copying.copy(a_copy(*range(8)), stored)
    first, _ = stored.batches
    assert (first.is_recovery, first.incarnation, first.master_key) == (True, "uuid", KEY)
    assert (reply.status, reply.covered, reply.stored_count) == (Status.READ_ONLY, len(first.entries), 2)
    assert reply.stored_bytes == sum(map(len, first.entries))
    assert copying.held_bytes == 0


async def test_entries_after_one_that_was_not_stored_are_not_covered() -> None:
    source = answering(sizes=lambda _: BATCH_BYTES_MAX // 2, missing=frozenset({1, 5, 7}))
    reply = await Copying(source, VirtualClock()).copy(a_copy(*range(8)), Stored([Status.OK, Status.READ_ONLY]))
    assert (reply.status, reply.covered, reply.stored_count) == (Status.READ_ONLY, 3, 2)
    assert [each.entry_id for each in reply.refusals] == [1]


@in_virtual_time
async def test_only_concurrent_copies_count_toward_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COPIES_MAX", 2)
    source, stored = Source(), Stored()
    copying = Copying(source, VirtualClock())
    for _ in range(5):  # the caller cancels them
        copies = [asyncio.create_task(copying.copy(a_copy(), stored)) for _ in range(2)]
        await asyncio.sleep(0.1)
        assert (await copying.copy(a_copy(), stored)).status is Status.TOO_MANY_REQUESTS
        for copy in copies:
            copy.cancel()
        await asyncio.wait(copies)
    source.answers.set()
    for _ in range(5):
        assert (await copying.copy(a_copy(), stored)).status is Status.OK
    assert copying.held_bytes == 0


@in_virtual_time
async def test_copies_without_room_are_refused_and_their_total_memory_is_bounded() -> None:
    source, stored = Source(), Stored()
    copying = Copying(source, VirtualClock())
    asked = 1000
    copies = [asyncio.create_task(copying.copy(a_copy(*range(asked)), stored)) for _ in range(20)]
    await asyncio.sleep(0)
    assert 0 < copying.held_bytes <= module.COPY_BYTES_MAX
    await asyncio.sleep(module.ROOM_TIMEOUT_S + 0.1)
    begun = len(source.asked)
    assert begun == module.COPY_BYTES_MAX // (READ_BYTES_MAX + PACKET_BYTES_MAX)
    source.answers.set()
    replies = [await copy for copy in copies]
    assert [reply.status for reply in replies].count(Status.TOO_MANY_REQUESTS) == len(copies) - begun
    assert sum(reply.stored_count for reply in replies) == begun * asked
    assert copying.held_bytes == 0
    assert (await copying.copy(a_copy(), stored)).stored_count == 10


@in_virtual_time
async def test_a_copy_holds_only_the_memory_of_its_read_entries() -> None:
    copying, may_store = Copying(answering(), VirtualClock()), asyncio.Event()

    async def slowly(batch: AddBatch) -> AddReply:
        await may_store.wait()
        return AddReply(Status.OK)

    copies = [asyncio.create_task(copying.copy(a_copy(), slowly)) for _ in range(30)]

    async def holds_what_was_read() -> bool:
        return copying.held_bytes == len(copies) * sum(len(entry(n)) for n in range(10))

    await until(holds_what_was_read)
    may_store.set()
    assert {(await copy).stored_count for copy in copies} == {10}


@in_virtual_time
async def test_more_copies_than_the_limit_are_refused_at_once() -> None:
    copying, clock = Copying(Source(), VirtualClock()), VirtualClock()
    copies = [asyncio.create_task(copying.copy(a_copy(0), Stored())) for _ in range(module.COPIES_MAX)]
    await asyncio.sleep(0)
    began_s = clock.monotonic_s()
    assert (await copying.copy(a_copy(0), Stored())).status is Status.TOO_MANY_REQUESTS
    assert clock.monotonic_s() == began_s
    for copy in copies:
        await copy


@asynccontextmanager
async def serving(source: Source) -> AsyncIterator[BookieService]:
    bookie = await open_bookie(copying=Copying(source, VirtualClock()))
    yield bookie.service
    await bookie.storage.abort()


async def ask(service: BookieService, copy: Copy) -> CopyReply:
    return await service.answer("uuid", copy)


async def test_a_caller_without_permission_to_add_causes_no_traffic() -> None:
    source = answering()
    async with serving(source) as service:
        assert (await service.add("uuid", AddBatch(LEDGER, KEY, [entry(0)]))).status is Status.OK
        reply = await ask(service, a_copy(key=b"stranger"))
        assert (reply.status, reply.covered) == (Status.UNAUTHORIZED, 0)
        assert not source.asked


async def test_a_copy_whose_caller_disconnects_still_completes() -> None:
    source = Source()
    async with serving(source) as service:
        copy = asyncio.create_task(ask(service, a_copy()))
        await source.has_begun.wait()
        copy.cancel()
        await asyncio.wait([copy])
        assert not await service.drain(deadline_s=0.0)
        source.answers.set()
        assert await service.drain(deadline_s=10.0)
        listed = await service.answer("uuid", Read(LEDGER, [EntryId(9)]))
        assert [result.status for result in listed.results] == [Status.OK]


async def test_a_bookie_that_shuts_down_begins_no_copy() -> None:
    source = answering()
    async with serving(source) as service:
        service.refuse_everything()
        assert (await ask(service, a_copy())).status is Status.SHUTTING_DOWN
        assert not source.asked
