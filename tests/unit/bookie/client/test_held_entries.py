"""The entries of a bookie: from its list if it can list them, otherwise by reading them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import cast

import pytest
from typing_extensions import override

from bookie.client.held_entries import REQUESTS_MAX, Copies, HeldEntriesReader
from bookie.model.availability import EntryRuns
from bookie.model.digest import digest_for
from bookie.model.ids import BookieId, EntryId
from bookie.model.metadata import DigestType
from bookie.wire.port import READ_ENTRIES_MAX, EntryResult, ListReply, ReadReply, ReplyT, Request, Status
from bookie.wire.requests import Read
from tests.worlds.clocks import VirtualClock
from tests.worlds.ledgers import LEDGER, PASSWORD, make_packets
from tests.worlds.requests import WithoutAdds
from tests.worlds.virtual_time import in_virtual_time

BOOKIE = BookieId("b")
COUNT = 500
PACKETS = make_packets(LEDGER, COUNT)


class Bookie(WithoutAdds):
    """A bookie that stores ``held``, gives scripted answers for some entries, and can list only if configured to."""

    def __init__(self, held: range = range(COUNT)) -> None:
        self.held = held
        self.packets = PACKETS
        self.listing = ListReply(Status.UNSUPPORTED)
        self.statuses: dict[int, Status] = {}
        self.reasons: dict[int, str] = {}
        self.refusals: list[Status] = []
        """Statuses of the next read requests as a whole."""
        self.prefix = READ_ENTRIES_MAX
        """The number of entries in an answer."""
        self.asked: list[Sequence[EntryId]] = []
        self.in_flight = self.in_flight_max = 0

    @override
    async def ask(self, bookie: BookieId, request: Request[ReplyT], timeout_s: float) -> ReplyT:
        reply = await self._read(request.entry_ids) if isinstance(request, Read) else self.listing
        return cast(ReplyT, reply)

    async def _read(self, entry_ids: Sequence[EntryId]) -> ReadReply:
        self.asked.append(list(entry_ids))
        self.in_flight += 1
        self.in_flight_max = max(self.in_flight_max, self.in_flight)
        await asyncio.sleep(0.01)
        self.in_flight -= 1
        if self.refusals and (status := self.refusals.pop(0)) is not Status.OK:
            return ReadReply(status, detail="as the test wants")
        return ReadReply(Status.OK, [self._result(entry_id) for entry_id in entry_ids[: self.prefix]])

    def _result(self, entry_id: EntryId) -> EntryResult:
        status = self.statuses.get(entry_id, Status.OK if entry_id in self.held else Status.NO_ENTRY)
        packet = self.packets[entry_id] if status is Status.OK else b""
        return EntryResult(entry_id, status, packet, self.reasons.get(entry_id, ""))

    async def result_of(self, wanted: Sequence[int] = range(COUNT), attempts_max: int = 1) -> ListReply:
        asking = HeldEntriesReader(self, VirtualClock(), 1.0, attempts_max)
        return await asking.held(BOOKIE, LEDGER, map(EntryId, wanted))

    async def copies(self) -> Copies:
        return await HeldEntriesReader(self, VirtualClock(), 1.0).copies(BOOKIE, LEDGER, map(EntryId, range(COUNT)))


@in_virtual_time
async def test_entries_of_a_bookie_with_lists_are_not_read() -> None:
    bookie = Bookie()
    bookie.listing = ListReply(Status.OK, EntryRuns(((0, 9),)))
    assert await bookie.result_of() == bookie.listing
    assert bookie.asked == []


@pytest.mark.parametrize("status", [Status.TIMEOUT, Status.IO_ERROR, Status.NO_LEDGER, Status.UNREACHABLE])
@in_virtual_time
async def test_any_error_but_unsupported_lists_is_the_result(status: Status) -> None:
    bookie = Bookie()
    bookie.listing = ListReply(status)
    assert (await bookie.result_of()).status is status
    assert bookie.asked == []


@pytest.mark.parametrize("prefix", [1, 7, READ_ENTRIES_MAX])
@in_virtual_time
async def test_exactly_the_wanted_entries_are_read_once_in_bounded_requests(prefix: int) -> None:
    bookie = Bookie(range(100, 300))
    bookie.prefix = prefix
    wanted = [entry for entry in range(COUNT) if entry % 3]
    reply = await bookie.result_of(wanted)
    assert (reply.status, list(reply.entries)) == (Status.OK, [entry for entry in wanted if 100 <= entry < 300])
    answered = [entry for asked in bookie.asked for entry in asked[:prefix]]
    assert sorted(answered) == wanted
    assert all(list(asked) == sorted(asked) for asked in bookie.asked)
    assert bookie.in_flight_max <= REQUESTS_MAX


@in_virtual_time
async def test_wanted_ids_are_consumed_only_as_they_are_read() -> None:
    taken: list[int] = []

    def wanted() -> Iterator[EntryId]:
        for entry in range(COUNT):
            taken.append(entry)
            yield EntryId(entry)

    bookie = Bookie()
    bookie.refusals = [Status.IO_ERROR]
    reply = await HeldEntriesReader(bookie, VirtualClock(), 1.0).held(BOOKIE, LEDGER, wanted())
    assert reply.status is Status.IO_ERROR
    assert len(taken) == sum(map(len, bookie.asked)) < COUNT


@in_virtual_time
async def test_entries_in_limbo_do_not_make_others_unknown() -> None:
    bookie = Bookie()
    bookie.statuses = {3: Status.LIMBO, 400: Status.LIMBO, 5: Status.NO_ENTRY}
    reply = await bookie.result_of()
    assert reply.status is Status.LIMBO
    assert set(range(COUNT)) - set(reply.entries) == {3, 5, 400}


@pytest.mark.parametrize("is_serving_all", [True, False])
@in_virtual_time
async def test_a_bookie_in_limbo_that_lists_nothing_is_read_and_stays_in_limbo(is_serving_all: bool) -> None:
    bookie = Bookie()
    bookie.listing = ListReply(Status.LIMBO)
    bookie.statuses = {} if is_serving_all else {5: Status.LIMBO}
    reply = await bookie.result_of()
    assert (reply.status, len(reply.entries)) == (Status.LIMBO, COUNT - (not is_serving_all))


@pytest.mark.parametrize("status", [Status.IO_ERROR, Status.CORRUPT, Status.UNAUTHORIZED, Status.SHUTTING_DOWN])
@in_virtual_time
async def test_an_unknown_entry_makes_the_whole_result_unknown(status: Status) -> None:
    bookie = Bookie()
    bookie.statuses = {4: Status.LIMBO, 20: status}
    reply = await bookie.result_of()
    assert reply.status is status
    assert "entry 20" in reply.detail
    assert 3 in reply.entries


@in_virtual_time
async def test_another_entry_than_the_requested_one_is_damage() -> None:
    bookie = Bookie()
    real = dict(PACKETS)
    try:
        PACKETS[EntryId(9)] = real[EntryId(8)]
        assert (await bookie.result_of()).status is Status.CORRUPT
        PACKETS[EntryId(9)] = b"short"
        assert (await bookie.result_of()).status is Status.CORRUPT
    finally:
        PACKETS.update(real)


@in_virtual_time
async def test_a_timeout_is_retried_and_is_then_the_result() -> None:
    bookie = Bookie()
    bookie.refusals = [Status.TIMEOUT, Status.TOO_MANY_REQUESTS, Status.UNREACHABLE]
    reply = await bookie.result_of(attempts_max=4)
    assert (reply.status, len(reply.entries)) == (Status.OK, COUNT)
    bookie.refusals = [Status.TIMEOUT] * 1000
    assert (await bookie.result_of(attempts_max=4)).status is Status.TIMEOUT


@in_virtual_time
async def test_an_answer_without_entries_is_an_error() -> None:
    bookie = Bookie()
    bookie.prefix = 0
    assert (await bookie.result_of()).status is Status.IO_ERROR


@in_virtual_time
async def test_without_wanted_entries_nothing_is_read() -> None:
    bookie = Bookie()
    assert await bookie.result_of([]) == ListReply(Status.OK)
    assert bookie.asked == []


@pytest.mark.parametrize("damaged", [[0], [57], [COUNT - 1], [0, 3, 4, 250, COUNT - 1], list(range(COUNT))])
@in_virtual_time
async def test_entries_that_an_apache_bookie_cannot_read_are_damaged_copies_of_a_closed_ledger(
    damaged: list[int],
) -> None:
    bookie = Bookie()
    bookie.statuses = dict.fromkeys(damaged, Status.IO_ERROR)
    copies = await bookie.copies()
    assert (copies.held.status, list(copies.unread)) == (Status.CORRUPT, damaged)
    assert set(range(COUNT)) - set(copies.held.entries) == set(damaged)
    assert "damaged or unreadable: IO_ERROR" in copies.held.detail
    assert sorted(entry for asked in bookie.asked for entry in asked) == list(range(COUNT))


@in_virtual_time
async def test_damaged_copies_cause_no_further_requests() -> None:
    bookies = [Bookie(), Bookie()]
    bookies[1].statuses = {3: Status.IO_ERROR, 57: Status.IO_ERROR}
    whole, _ = [await each.copies() for each in bookies]
    assert (whole.held, list(whole.unread)) == (ListReply(Status.OK, EntryRuns(((0, COUNT - 1),))), [])
    assert len(bookies[0].asked) == len(bookies[1].asked) < COUNT // 50


@in_virtual_time
async def test_denied_entries_are_not_reported_as_unreadable() -> None:
    bookie = Bookie(range(100, COUNT))
    bookie.statuses = {200: Status.IO_ERROR, 201: Status.CORRUPT, 300: Status.LIMBO}
    copies = await bookie.copies()
    assert (copies.held.status, list(copies.unread)) == (Status.CORRUPT, [200])


@pytest.mark.parametrize("reason", ["a frame of 9 MB is longer than 5 MB", ""])
@in_virtual_time
async def test_an_entry_that_this_process_could_not_receive_is_unknown(reason: str) -> None:
    bookie = Bookie()
    bookie.statuses, bookie.reasons = {20: Status.IO_ERROR}, {20: reason}
    assert (await bookie.copies()).held.status is (Status.IO_ERROR if reason else Status.CORRUPT)


@pytest.mark.parametrize("listing", [ListReply(Status.IO_ERROR), ListReply(Status.LIMBO)])
@in_virtual_time
async def test_an_io_error_of_a_bookie_with_lists_is_not_damage_of_its_copies(listing: ListReply) -> None:
    bookie = Bookie()
    bookie.listing = listing
    bookie.statuses = {20: Status.IO_ERROR}
    copies = await bookie.copies()
    assert (copies.held.status, list(copies.unread)) == (Status.IO_ERROR, [])


@pytest.mark.parametrize("status", [Status.TIMEOUT, Status.UNAUTHORIZED, Status.SHUTTING_DOWN])
@in_virtual_time
async def test_another_error_after_damaged_copies_makes_the_whole_result_unknown(status: Status) -> None:
    bookie = Bookie()
    bookie.statuses = {3: Status.IO_ERROR, 20: status}
    assert (await bookie.copies()).held.status is status


@pytest.mark.parametrize("digest_type", DigestType)
@in_virtual_time
async def test_an_entry_whose_bytes_do_not_verify_is_damaged_if_the_digest_is_known(digest_type: DigestType) -> None:
    bookie = Bookie()
    bookie.packets = make_packets(LEDGER, COUNT, digest_type=digest_type)
    packet = bookie.packets[EntryId(7)]
    bookie.packets[EntryId(7)] = packet[:-1] + bytes([packet[-1] ^ 1])
    asking, wanted = HeldEntriesReader(bookie, VirtualClock(), 1.0), [EntryId(each) for each in range(COUNT)]
    known = await asking.copies(BOOKIE, LEDGER, wanted, digest_for(digest_type, PASSWORD))
    unknown = await asking.copies(BOOKIE, LEDGER, wanted)
    is_found = digest_type is not DigestType.DUMMY
    assert (list(known.damaged), EntryId(7) in known.held.entries) == ([7] if is_found else [], not is_found)
    assert known.held.status is (Status.CORRUPT if is_found else Status.OK)
    assert (list(unknown.damaged), len(unknown.held.entries)) == ([], COUNT)
