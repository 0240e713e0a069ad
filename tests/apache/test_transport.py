"""Our transport on Apache's bookies, with both storages: the result of each request, and the entries sent in bulk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from bookie.embedded.apache import ApacheCluster
from bookie.model.availability import EntryRuns
from bookie.model.digest import digest_for, master_key
from bookie.model.ids import NO_ENTRY, BookieId, EntryId, LedgerId
from bookie.model.metadata import DigestType
from bookie.model.packet import pack, pack_lac, unpack_lac
from bookie.wire.apache import protocol_pb2 as pb
from bookie.wire.apache import v2
from bookie.wire.apache.listing import LIST_SILENCE_S
from bookie.wire.apache.transport import ApacheTransport
from bookie.wire.port import AddBatch, AddReply, EntryResult, FenceReply, LacReply, ListReply, ReadReply, Status
from bookie.wire.requests import Fence, Info, ListEntries, Read, ReadLac, ReadLast, WaitLac, WriteLac
from bookie.wire.resolver import APACHE_PROTOCOL, BookieAddress
from tests.apache.driver import JavaDriver, payload
from tests.apache.recording_proxy import Frame, RecordingProxy
from tests.apache.waiting import until
from tests.deadlines import STATE_S

pytestmark = pytest.mark.apache

BOOKIE = BookieId("the-bookie")
KEY, WRONG_KEY = master_key(b"right"), master_key(b"wrong")
DIGEST = digest_for(DigestType.CRC32C, b"right")
LONG_WAIT_S = 3600.0
"""The timeout of a long poll that ends by an event."""
SOON_S = 0.2
"""The timeout of a long poll without an event, and of a list if the bookie does not support lists."""


@dataclass
class OneBookie:
    """The transport, and its requests for a ledger without data on the bookie."""

    name: BookieId
    """The bookie's name in Apache's client."""
    transport: ApacheTransport
    ledger_id: LedgerId
    has_lists: bool
    proxy: RecordingProxy

    def entry(self, entry_id: int, size: int = 3) -> bytes:
        content = payload("wire", entry_id, size)
        return pack(DIGEST, self.ledger_id, EntryId(entry_id), entry_id - 1, size * (entry_id + 1), content)

    def lac(self, last_add_confirmed: int) -> bytes:
        return pack_lac(DIGEST, self.ledger_id, last_add_confirmed)

    def found(self, entry_ids: Sequence[int]) -> list[EntryResult]:
        return [EntryResult(EntryId(each), Status.OK, self.entry(each)) for each in entry_ids]

    async def add(self, *entry_ids: int, key: bytes = KEY, is_recovery: bool = False) -> Status:
        return await self.add_packets([self.entry(each) for each in entry_ids], key, is_recovery=is_recovery)

    async def add_packets(self, packets: Sequence[bytes], key: bytes, *, is_recovery: bool) -> Status:
        batch = AddBatch(self.ledger_id, key, packets, is_recovery)
        return (await self.transport.add(BOOKIE, batch, STATE_S)).status

    async def read(self, entry_ids: Sequence[int], fence_key: bytes | None = None) -> ReadReply:
        wanted = [EntryId(each) for each in entry_ids]
        return await self.transport.ask(BOOKIE, Read(self.ledger_id, wanted, fence_key=fence_key), STATE_S)

    async def fence(self, key: bytes = KEY) -> FenceReply:
        return await self.transport.ask(BOOKIE, Fence(self.ledger_id, key), STATE_S)

    async def write_lac(self, last_add_confirmed: int, key: bytes = KEY) -> Status:
        packet = self.lac(last_add_confirmed)
        return (await self.transport.ask(BOOKIE, WriteLac(self.ledger_id, key, packet), STATE_S)).status

    async def explicit_lac(self) -> int | None:
        reply = await self.transport.ask(BOOKIE, ReadLac(self.ledger_id), STATE_S)
        assert reply.status is Status.OK
        return unpack_lac(DIGEST, reply.explicit, self.ledger_id) if reply.explicit else None

    async def listed(self) -> ListReply:
        return await self.transport.ask(BOOKIE, ListEntries(self.ledger_id), STATE_S)

    async def last(self) -> EntryResult:
        reply = await self.transport.ask(BOOKIE, ReadLast(self.ledger_id), STATE_S)
        assert reply.status is Status.OK
        [last] = reply.results
        return last

    @asynccontextmanager
    async def polling(self, beyond: int) -> AsyncIterator[asyncio.Task[LacReply]]:
        """Send a long poll to the bookie, and check that another request is answered before it."""
        waiting = WaitLac(self.ledger_id, EntryId(beyond), LONG_WAIT_S)
        poll = asyncio.create_task(self.transport.ask(BOOKIE, waiting, LONG_WAIT_S + STATE_S))
        try:
            await until(self.long_polls, lambda polls: polls > 0, "the long poll is asked")
            await self.last()
            assert not poll.done()
            yield poll
        finally:
            poll.cancel()

    async def long_polls(self) -> int:
        return sum(asked.readRequest.HasField("previousLAC") for asked in self.asked_v3(self.proxy.frames))

    def asked_v3(self, frames: Sequence[Frame]) -> list[pb.Request]:
        bodies = [frame.body for frame in frames if frame.is_request and frame.body[0] != v2.VERSION]
        return [pb.Request.FromString(body) for body in bodies]

    def asked_v2(self, frames: Sequence[Frame]) -> list[int]:
        """Return the opcodes of the requests in version 2."""
        return [frame.body[1] for frame in frames if frame.is_request and frame.body[0] == v2.VERSION]


@dataclass
class Behind:
    """A resolver that returns only the proxy."""

    proxy: RecordingProxy

    async def resolve(self, bookie: BookieId) -> BookieAddress | None:
        return BookieAddress("127.0.0.1", self.proxy.port, APACHE_PROTOCOL) if bookie == BOOKIE else None


@pytest.fixture(params=["sorted", "db"])
async def bookie(
    request: pytest.FixtureRequest, apache_cluster: ApacheCluster, java: JavaDriver
) -> AsyncIterator[OneBookie]:
    """A ledger in the metadata, which protects it from collectors, but with no data on any bookie."""
    has_lists = request.param == "sorted"
    target = apache_cluster.bookies[0 if has_lists else -1]
    ledger_id = LedgerId((await java.create(1, 1, 1, password=b"right")).ledger_id)
    async with RecordingProxy(target.port) as proxy:
        silence_s = LIST_SILENCE_S if has_lists else SOON_S
        transport = ApacheTransport(Behind(proxy), list_silence_s=silence_s, bulk_entries_min=8)
        yield OneBookie(target.bookie_id, transport, ledger_id, has_lists, proxy)
        await transport.close()
    await java.call("delete", ledger=ledger_id)


async def test_requests_for_an_unknown_ledger_return_no_ledger(bookie: OneBookie) -> None:
    reply = await bookie.read([0, 5])
    assert (reply.status, [result.status for result in reply.results]) == (Status.OK, [Status.NO_LEDGER] * 2)
    assert (await bookie.last()).status is Status.NO_LEDGER
    for request in (ReadLac(bookie.ledger_id), WaitLac(bookie.ledger_id, NO_ENTRY, SOON_S)):
        assert (await bookie.transport.ask(BOOKIE, request, STATE_S)).status is Status.NO_LEDGER
    assert (await bookie.listed()).status is Status.NO_LEDGER
    assert {result.status for result in (await bookie.read(range(20))).results} == {Status.NO_LEDGER}


async def test_a_wrong_master_key_can_neither_add_nor_fence_nor_read(bookie: OneBookie) -> None:
    assert await bookie.add(0, 1) is Status.OK
    assert await bookie.write_lac(0) is Status.OK
    assert await bookie.add(2, key=WRONG_KEY) is Status.UNAUTHORIZED
    assert await bookie.add(2, key=WRONG_KEY, is_recovery=True) is Status.UNAUTHORIZED
    assert (await bookie.fence(WRONG_KEY)).status is Status.UNAUTHORIZED
    refused = await bookie.read([0], fence_key=WRONG_KEY)
    assert (refused.status, list(refused.results)) == (Status.UNAUTHORIZED, [])
    assert await bookie.write_lac(1, WRONG_KEY) is Status.UNAUTHORIZED
    assert (await bookie.last()).entry_id == 1
    assert await bookie.explicit_lac() == 0
    assert await bookie.add(2) is Status.OK  # the ledger was not fenced


async def test_a_fence_stops_all_adds_but_recovery(bookie: OneBookie) -> None:
    assert await bookie.add(0, 1) is Status.OK
    assert await bookie.fence() == FenceReply(Status.OK, bookie.found([1])[0])
    assert await bookie.add(2) is Status.FENCED
    assert await bookie.add(2, 4, is_recovery=True) is Status.OK
    assert await bookie.add(3) is Status.FENCED
    reply = await bookie.read([1, 2, 3, 4], fence_key=KEY)
    missing = EntryResult(EntryId(3), Status.NO_ENTRY)
    assert list(reply.results) == [*bookie.found([1, 2]), missing, *bookie.found([4])]
    assert await bookie.last() == bookie.found([4])[0]


async def test_a_fence_before_the_first_entry_stops_adds(bookie: OneBookie) -> None:
    assert await bookie.fence() == FenceReply(Status.OK, None)
    assert await bookie.add(0) is Status.FENCED
    assert (await bookie.last()).status is Status.NO_ENTRY
    assert await bookie.add(0, is_recovery=True) is Status.OK
    assert await bookie.last() == bookie.found([0])[0]


async def test_an_explicit_lac_is_read_as_it_was_written(bookie: OneBookie) -> None:
    assert await bookie.add(0, 1) is Status.OK
    assert await bookie.explicit_lac() is None
    assert await bookie.write_lac(1) is Status.OK
    reply = await bookie.transport.ask(BOOKIE, ReadLac(bookie.ledger_id), STATE_S)
    assert (reply.explicit, reply.last_entry) == (bookie.lac(1), bookie.found([1])[0])


async def test_a_long_poll_waits_until_an_explicit_lac_is_written(bookie: OneBookie) -> None:
    assert await bookie.add(0, 1) is Status.OK
    assert await bookie.write_lac(1) is Status.OK
    async with bookie.polling(beyond=1) as poll:
        assert await bookie.write_lac(2) is Status.OK
        reply = await poll
        assert (reply.status, reply.explicit) == (Status.OK, bookie.lac(2))


async def test_a_long_poll_waits_until_an_entry_confirms_the_one_before(bookie: OneBookie) -> None:
    assert await bookie.add(0, 1) is Status.OK
    # With DbLedgerStorage the entry ends a later poll only if the bookie already had an LAC in memory.
    assert await bookie.write_lac(0) is Status.OK
    async with bookie.polling(beyond=0) as poll:
        assert await bookie.add(2) is Status.OK
        reply = await poll
        assert reply.last_entry == bookie.found([2])[0]
        assert reply.entry == bookie.found([1])[0]


async def test_a_long_poll_returns_the_current_state_at_its_end(bookie: OneBookie) -> None:
    assert await bookie.add(0, 1) is Status.OK
    async with bookie.polling(beyond=5):
        reply = await bookie.transport.ask(BOOKIE, WaitLac(bookie.ledger_id, EntryId(5), SOON_S), STATE_S)
        assert (reply.status, reply.explicit) == (Status.OK, b"")
        assert (reply.last_entry, reply.entry) == (bookie.found([1])[0], None)


async def test_info_list_and_force_work(bookie: OneBookie) -> None:
    info = (await bookie.transport.ask(BOOKIE, Info(), STATE_S)).info
    assert info is not None
    assert 0 < info.disk_free_bytes <= info.disk_total_bytes
    assert await bookie.add(0, 1, 2, 7) is Status.OK
    assert await bookie.transport.force(BOOKIE, bookie.ledger_id, STATE_S) == AddReply(Status.OK)
    listed = await bookie.listed()
    if bookie.has_lists:
        assert (listed.status, listed.entries) == (Status.OK, EntryRuns(((0, 2), (7, 7))))
    else:
        assert listed.status is Status.UNSUPPORTED


async def test_bulk_copies_use_version_2_and_contain_the_same_bytes(bookie: OneBookie, java: JavaDriver) -> None:
    """The reads are for more than one answer of a batch read, then for scattered entries, then for missing ones."""
    packets = [bookie.entry(each, 120_000) for each in range(60)]
    for first in range(0, 60, 8):
        assert await bookie.add_packets(packets[first : first + 8], KEY, is_recovery=True) is Status.OK
    sent = bookie.proxy.frames[:]
    assert bookie.asked_v2(sent) == [v2.ADD_ENTRY] * 56
    asked = [request.addRequest.entryId for request in bookie.asked_v3(sent)]
    assert asked == [56, 57, 58, 59]  # too few for the bulk connection
    for entry_id in (0, 55, 59):
        stored = await java.call("read_copy", bookie=bookie.name, ledger=bookie.ledger_id, entry=entry_id)
        assert bytes.fromhex(stored["data"]) == packets[entry_id]

    passed = len(bookie.proxy.frames)
    reply = await bookie.read(range(60))
    assert [result.packet for result in reply.results] == packets
    sent = bookie.proxy.frames[passed:]
    assert (bookie.asked_v2(sent), bookie.asked_v3(sent)) == ([v2.BATCH_READ_ENTRY] * 2, [])

    passed = len(bookie.proxy.frames)
    reply = await bookie.read(range(0, 60, 3))
    assert [result.packet for result in reply.results] == packets[::3]
    sent = bookie.proxy.frames[passed:]
    assert (bookie.asked_v2(sent), bookie.asked_v3(sent)) == ([v2.READ_ENTRY] * 20, [])

    passed = len(bookie.proxy.frames)
    reply = await bookie.read(range(50, 70))
    assert [result.packet for result in reply.results[:10]] == packets[50:]
    assert [result.status for result in reply.results[10:]] == [Status.NO_ENTRY] * 10
    asked = [request.readRequest.entryId for request in bookie.asked_v3(bookie.proxy.frames[passed:])]
    assert asked == list(range(60, 70))


async def test_a_refused_bulk_add_keeps_its_true_status(bookie: OneBookie) -> None:
    assert await bookie.add(0) is Status.OK
    assert (await bookie.fence()).status is Status.OK
    wanted = range(1, 21)
    assert await bookie.add(*wanted, key=WRONG_KEY, is_recovery=True) is Status.UNAUTHORIZED
    assert bookie.asked_v2(bookie.proxy.frames) == [v2.ADD_ENTRY] * 20
    assert await bookie.last() == bookie.found([0])[0]
    passed = len(bookie.proxy.frames)
    assert await bookie.add(*wanted, is_recovery=True) is Status.OK
    sent = bookie.proxy.frames[passed:]
    assert (bookie.asked_v2(sent), bookie.asked_v3(sent)) == ([v2.ADD_ENTRY] * 20, [])
    assert list((await bookie.read(range(21))).results) == bookie.found(range(21))
    assert await bookie.add(*range(21, 41)) is Status.FENCED
