"""Writer and reader on the in-memory twins of store, network and disks: the guarantees for applications."""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from pathlib import Path

import pytest
from typing_extensions import override

from bookie.client.bookkeeper import BookKeeper, InvalidQuorumError, LedgerOptions
from bookie.client.connect import ConnectedBookKeeper, connect
from bookie.client.errors import (
    AddOutcomeUnknownError,
    CloseOutcomeUnknownError,
    EntryTooLargeError,
    EntryUnavailableError,
    LedgerFencedError,
    NoSuchEntryError,
    NotEnoughBookiesError,
    WriterClosedError,
    WrongPasswordError,
)
from bookie.client.resolve import RegistrationResolver
from bookie.client.settings import ClientSettings
from bookie.client.sync import SyncBookKeeper
from bookie.client.writer.writer import LedgerWriter
from bookie.metadata.ledgers.ledgers import LedgerExistsError, NoSuchLedgerError, Unreadable, Versioned
from bookie.metadata.port import AccessDeniedError
from bookie.metadata.store.memory import Fault, MemoryStore
from bookie.metadata.store.zookeeper import ZooKeeperStore
from bookie.model.digest import master_key
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import DigestType, LedgerState
from bookie.model.packet import ENTRY_PAYLOAD_MAX
from bookie.model.schedule import Stripe
from bookie.runtime.clock import SystemClock
from bookie.runtime.loop_thread import LoopThread
from bookie.wire.memory import MemoryTransport
from bookie.wire.port import AddBatch, AddReply, Status
from bookie.wire.requests import Fence, Read
from bookie.wire.security import BookieSecurity, TlsSettings
from bookie.wire.tls import TlsFilesError
from tests.worlds.clocks import ManualClock
from tests.worlds.cluster import MemoryCluster
from tests.worlds.ledgers import names, with_member
from tests.worlds.stale_store import StaleStore

BOOKIES = names("b0 b1 b2 b3 b4 b5 b6")
SETTINGS = ClientSettings(add_timeout_s=2, read_timeout_s=2, close_timeout_s=2, busy_backoff_s=0.001)


class ClientWorld(MemoryCluster):
    """A cluster of seven bookies in this process, and one client."""

    client: BookKeeper
    transport: MemoryTransport

    def __init__(self) -> None:
        super().__init__(SystemClock())

    async def start(self) -> None:
        await self.found()
        await self.add_bookies(" ".join(BOOKIES))
        self.transport = self.memory_transport(self.store)
        self.client = BookKeeper(self.client_ports(self.transport, SETTINGS, self.store, seed=1))

    def client_with(self, **settings: float) -> BookKeeper:
        changed = dataclasses.replace(SETTINGS, **settings)  # type: ignore[arg-type]  # the fields' own types
        return BookKeeper(dataclasses.replace(self.client.ports, settings=changed))

    async def repair(self, ledger_id: LedgerId, position: int, target: BookieId, entry_ids: Sequence[EntryId]) -> None:
        """Copy entries of the first fragment to ``target`` and let it take over ``position``."""
        ledger = await self.client.ports.ledgers.read(ledger_id)
        source = ledger.metadata.fragments[0].members[position]
        found = await self.transport.ask(source, Read(ledger_id, entry_ids), 1)
        copies = AddBatch(ledger_id, master_key(b""), [result.packet for result in found.results], is_recovery=True)
        assert (await self.transport.add(target, copies, 1)).status is Status.OK
        await self.client.ports.ledgers.write(
            ledger_id, with_member(ledger.metadata, 0, position, target), ledger.version
        )

    async def payloads(self, writer: LedgerWriter) -> list[bytes]:
        reader = await self.client.open_ledger(writer.ledger_id)
        return [entry.payload async for entry in reader.read_all()]


@pytest.fixture
async def world() -> AsyncIterator[ClientWorld]:
    world = ClientWorld()
    await world.start()
    yield world
    await world.close()


def payload(index: int) -> bytes:
    return f"entry {index} ".encode() * (index % 7)


async def fill(writer: LedgerWriter, first: int, count: int) -> None:
    waiters = [await writer.submit(payload(index)) for index in range(first, first + count)]
    assert await asyncio.gather(*waiters) == list(range(first, first + count))


@pytest.mark.parametrize("digest", DigestType)
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 3, 2), (3, 2, 2), (5, 3, 2)])
async def test_appended_entries_are_read_back(
    world: ClientWorld, shape: tuple[int, int, int], digest: DigestType
) -> None:
    options = LedgerOptions(*shape, digest_type=digest)
    async with await world.client.create_ledger(options, password=b"secret", custom={"a": b"1"}) as writer:
        await fill(writer, 0, 50)
    assert await world.payloads(writer) == [payload(index) for index in range(50)]
    metadata = (await world.client.ports.ledgers.read(writer.ledger_id)).metadata
    assert (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, 49)
    assert metadata.length == sum(len(payload(index)) for index in range(50))
    assert metadata.custom_map == {"a": b"1"}


async def test_each_entry_is_on_exactly_its_write_set_after_close(world: ClientWorld) -> None:
    async with await world.client.create_ledger(LedgerOptions(5, 3, 2)) as writer:
        await fill(writer, 0, 23)
    members = writer.metadata.last_fragment.members
    for position, bookie in enumerate(members):
        held = await world.storages[bookie].list_entries(writer.ledger_id)
        assert list(held.entries) == [n for n in range(23) if position in Stripe(5, 3).write_set(n)]


async def test_a_closed_ledger_is_opened_with_its_end_although_the_server_is_behind(world: ClientWorld) -> None:
    store = StaleStore(world.cell)
    reading = BookKeeper(world.client_ports(world.transport, SETTINGS, store))
    writer = await world.client.create_ledger()
    await fill(writer, 0, 5)
    store.fall_behind()
    await writer.close()
    reader = await reading.open_ledger(writer.ledger_id)
    assert reader.metadata.is_closed
    assert len([entry async for entry in reader.read_all()]) == 5
    await store.close()


async def test_a_ledger_that_the_server_does_not_have_yet_is_opened(world: ClientWorld) -> None:
    store = StaleStore(world.cell)
    reading = BookKeeper(world.client_ports(world.transport, SETTINGS, store))
    store.fall_behind()
    async with await world.client.create_ledger() as writer:
        await fill(writer, 0, 5)
    assert await (await reading.open_ledger(writer.ledger_id)).last_entry_id() == 4
    store.fall_behind()
    await world.client.delete_ledger(writer.ledger_id)
    with pytest.raises(NoSuchLedgerError):
        await reading.open_ledger(LedgerId(writer.ledger_id + 1))
    await store.close()


async def test_the_next_free_id_is_used_if_applications_have_taken_some(world: ClientWorld) -> None:
    """Apache's clients may choose ids themselves, and the counter of ids is back at 0 after some restorations."""
    first = await world.client.create_ledger()
    taken = [LedgerId(first.ledger_id + 1 + number) for number in range(3)]
    await world.ledgers.create_many([(ledger_id, first.metadata) for ledger_id in taken])
    assert (await world.client.create_ledger()).ledger_id == first.ledger_id + 4


async def test_the_search_for_a_free_id_is_bounded_and_continues_with_the_next_call(
    world: ClientWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bookie.client.writer.creation.IDS_MAX", 5)
    first = await world.client.create_ledger()
    taken = [LedgerId(first.ledger_id + 1 + number) for number in range(7)]
    await world.ledgers.create_many([(ledger_id, first.metadata) for ledger_id in taken])
    with pytest.raises(LedgerExistsError, match=str(taken[4])):
        await world.client.create_ledger()
    assert (await world.client.create_ledger()).ledger_id == first.ledger_id + 8


async def test_a_ledger_whose_metadata_is_not_readable_here_does_not_end_a_scan(world: ClientWorld) -> None:
    async with world.client.create_ledger() as one, world.client.create_ledger() as other:
        pass
    world.cell.deny(world.ledgers.path(one.ledger_id))
    found = [item async for item in world.client.scan_ledgers()]
    assert [(item.ledger_id, isinstance(item, Unreadable)) for item in found] == [
        (one.ledger_id, True),
        (other.ledger_id, False),
    ]
    assert [each async for each in world.client.ledgers(state=LedgerState.CLOSED)] == [other.ledger_id]
    world.cell.deny(world.ledgers.path(other.ledger_id))
    with pytest.raises(AccessDeniedError):
        _ = [item async for item in world.client.scan_ledgers()]


async def test_an_empty_ledger_closes_at_minus_one(world: ClientWorld) -> None:
    async with await world.client.create_ledger() as writer:
        pass
    assert writer.metadata.last_entry_id == -1
    assert await world.payloads(writer) == []


async def test_the_writer_replaces_a_failed_bookie_and_loses_nothing(world: ClientWorld) -> None:
    writer = await world.client.create_ledger(LedgerOptions(3, 3, 2))
    await fill(writer, 0, 10)
    await writer.settle()
    dead = writer.metadata.last_fragment.members[1]
    world.break_bookie(dead)
    await fill(writer, 10, 10)
    metadata = await writer.close()
    assert [fragment.first_entry_id for fragment in metadata.fragments] == [0, 10]
    assert dead not in metadata.last_fragment.members
    assert len(set(metadata.last_fragment.members)) == 3
    assert await world.payloads(writer) == [payload(index) for index in range(20)]


async def test_an_empty_fragment_is_replaced_in_place(world: ClientWorld) -> None:
    writer = await world.client.create_ledger(LedgerOptions(3, 2, 2))
    dead = writer.metadata.last_fragment.members[0]
    world.break_bookie(dead)
    await fill(writer, 0, 5)
    metadata = await writer.close()
    assert len(metadata.fragments) == 1
    assert dead not in metadata.members()


async def test_several_failures_at_once_are_replaced_together(world: ClientWorld) -> None:
    writer = await world.client.create_ledger(LedgerOptions(5, 3, 2))
    await fill(writer, 0, 10)
    await writer.settle()
    dead = set(writer.metadata.last_fragment.members[:2])
    for bookie in dead:
        world.break_bookie(bookie)
    await fill(writer, 10, 10)
    metadata = await writer.close()
    assert not dead & set(metadata.last_fragment.members)
    assert await world.payloads(writer) == [payload(index) for index in range(20)]


async def test_without_a_spare_bookie_pending_adds_are_in_doubt_and_the_ledger_closes_at_the_last_ack(
    world: ClientWorld,
) -> None:
    writer = await world.client.create_ledger(LedgerOptions(7, 7, 7))
    await fill(writer, 0, 4)
    world.break_bookie(writer.metadata.last_fragment.members[3])
    with pytest.raises(AddOutcomeUnknownError, match="no writable bookie is left"):
        await writer.append(b"lost")
    metadata = await writer.close()
    assert metadata.last_entry_id == 3
    assert await world.payloads(writer) == [payload(index) for index in range(4)]


async def test_a_bookie_without_a_confirmed_entry_is_marked_for_repair_at_close(world: ClientWorld) -> None:
    writer = await world.client.create_ledger(LedgerOptions(3, 3, 2))
    slow = writer.metadata.last_fragment.members[2]
    world.transport.faults(slow).is_request_lost = True
    await fill(writer, 0, 3)
    await writer.close()
    task = await world.client.ports.tasks.read(writer.ledger_id)
    assert task is not None
    assert task.missing == (slow,)


async def test_closing_a_fenced_writer_raises_outcome_unknown(world: ClientWorld) -> None:
    writer = await world.client.create_ledger(LedgerOptions(3, 2, 2), password=b"p")
    await fill(writer, 0, 3)
    for bookie in writer.metadata.last_fragment.members:
        await world.transport.ask(bookie, Fence(writer.ledger_id, master_key(b"p")), 1)
    with pytest.raises(LedgerFencedError):
        await writer.append(b"too late")
    for _ in range(2):
        with pytest.raises(CloseOutcomeUnknownError):
            await writer.close()
    assert (await world.client.ports.ledgers.read(writer.ledger_id)).metadata.state is LedgerState.OPEN


async def test_each_refusal_raises_a_new_error(world: ClientWorld) -> None:
    """A shared error object that is raised repeatedly would collect tracebacks, and with them every refused payload."""
    writer = await world.client.create_ledger(LedgerOptions(3, 2, 2), password=b"p")
    for bookie in writer.metadata.last_fragment.members:
        await world.transport.ask(bookie, Fence(writer.ledger_id, master_key(b"p")), 1)
    errors = []
    for _ in range(3):
        with pytest.raises(LedgerFencedError) as refusal:
            await writer.append(b"x")
        errors.append(refusal.value)
    assert len(set(map(id, errors))) == 3
    await writer.abandon()


async def test_an_ensemble_change_stops_when_another_client_recovers(world: ClientWorld) -> None:
    writer = await world.client.create_ledger(LedgerOptions(3, 2, 2))
    await fill(writer, 0, 3)
    ledger = await world.client.ports.ledgers.read(writer.ledger_id)
    recovering = dataclasses.replace(ledger.metadata, state=LedgerState.IN_RECOVERY)
    await world.client.ports.ledgers.write(writer.ledger_id, recovering, ledger.version)
    world.break_bookie(writer.metadata.last_fragment.members[0])
    world.break_bookie(writer.metadata.last_fragment.members[1])
    with pytest.raises(LedgerFencedError):
        await writer.append(b"x")


async def test_an_ensemble_change_keeps_what_repair_changed_in_an_older_fragment(world: ClientWorld) -> None:
    writer = await world.client.create_ledger(LedgerOptions(3, 3, 2))
    await fill(writer, 0, 3)
    await writer.settle()
    world.break_bookie(writer.metadata.last_fragment.members[0])
    await fill(writer, 3, 3)
    await writer.settle()
    ledger = await world.client.ports.ledgers.read(writer.ledger_id)
    spare = next(b for b in BOOKIES if b not in ledger.metadata.members())
    repaired = await world.client.ports.ledgers.write(
        writer.ledger_id, with_member(ledger.metadata, 0, 0, spare), ledger.version
    )
    world.break_bookie(ledger.metadata.last_fragment.members[1])
    await fill(writer, 6, 3)
    metadata = await writer.close()
    assert metadata.fragments[0] == repaired.metadata.fragments[0]
    assert [fragment.first_entry_id for fragment in metadata.fragments] == [0, 3, 6]


async def test_a_change_whose_answer_was_lost_is_recognised_as_our_own(world: ClientWorld) -> None:
    writer = await world.client.create_ledger(LedgerOptions(3, 2, 2))
    await fill(writer, 0, 3)
    await writer.settle()
    lost = 0

    async def lose_one_answer(operation: str, path: str) -> Fault | None:
        nonlocal lost
        if operation == "set" and not lost:
            lost += 1
            return Fault.LOSE_ANSWER
        return None

    world.store.fault_hook = lose_one_answer
    world.break_bookie(writer.metadata.last_fragment.members[1])
    await fill(writer, 3, 3)
    metadata = await writer.close()
    assert lost == 1
    assert [fragment.first_entry_id for fragment in metadata.fragments] == [0, 3]
    assert await world.payloads(writer) == [payload(index) for index in range(6)]


async def test_a_change_in_doubt_is_recognised_even_if_it_becomes_visible_late(
    world: ClientWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = await world.client.create_ledger(LedgerOptions(3, 2, 2))
    await fill(writer, 0, 3)
    await writer.settle()
    ledgers = world.client.ports.ledgers
    before = await ledgers.read(writer.ledger_id)
    ledger_path = ledgers.path(writer.ledger_id)
    stages = ["set", "sync"]  # the answer to the write is lost, and the read that would settle it fails

    async def lose_answers(operation: str, path: str) -> Fault | None:
        if path != ledger_path or operation not in stages:
            return None
        stages.remove(operation)
        return Fault.LOSE_ANSWER

    async def lagging_once(ledger_id: LedgerId) -> Versioned:
        monkeypatch.undo()
        return before

    world.store.fault_hook = lose_answers
    monkeypatch.setattr(ledgers, "read", lagging_once)
    world.break_bookie(writer.metadata.last_fragment.members[1])
    await fill(writer, 3, 3)
    metadata = await writer.close()
    assert not stages
    assert [fragment.first_entry_id for fragment in metadata.fragments] == [0, 3]
    assert await world.payloads(writer) == [payload(index) for index in range(6)]


async def test_the_last_allowed_attempt_at_a_change_can_succeed(world: ClientWorld) -> None:
    writer = await world.client_with(ensemble_change_attempts_max=1).create_ledger(LedgerOptions(3, 2, 2))
    world.break_bookie(writer.metadata.last_fragment.members[1])
    await fill(writer, 0, 5)
    await writer.close()


async def test_a_returned_bookie_can_be_chosen_again_after_its_quarantine(world: ClientWorld) -> None:
    writer = await world.client_with(failed_bookie_quarantine_s=0).create_ledger(LedgerOptions(6, 3, 2))
    first, second = writer.metadata.last_fragment.members[:2]
    world.break_bookie(first)
    await fill(writer, 0, 6)
    world.break_bookie(first, is_broken=False)
    world.break_bookie(second)
    await fill(writer, 6, 6)
    assert first in writer.metadata.last_fragment.members
    await writer.close()


async def test_a_change_under_way_ends_when_the_writer_fails(
    world: ClientWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = await world.client.create_ledger(LedgerOptions(3, 3, 2))
    before = writer.metadata
    members = before.last_fragment.members
    may_list, add = asyncio.Event(), world.transport.add

    async def wait_with_the_list(operation: str, path: str) -> Fault | None:
        if operation == "children":
            await may_list.wait()
        return None

    async def refused(bookie: BookieId, batch: AddBatch, timeout_s: float) -> AddReply:
        if bookie != members[1]:
            return await add(bookie, batch, timeout_s)
        await asyncio.sleep(0.01)
        return AddReply(Status.UNAUTHORIZED)

    world.store.fault_hook = wait_with_the_list
    monkeypatch.setattr(world.transport, "add", refused)
    world.break_bookie(members[0])
    with pytest.raises(AddOutcomeUnknownError, match="wrong password"):
        await writer.append(b"x")
    may_list.set()
    await asyncio.sleep(0.02)
    assert (await world.client.ports.ledgers.read(writer.ledger_id)).metadata == before
    await writer.abandon()


async def test_an_unexpected_error_of_the_transport_fails_the_writer(
    world: ClientWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = await world.client.create_ledger()

    async def broken(bookie: BookieId, batch: AddBatch, timeout_s: float) -> AddReply:
        raise RuntimeError("a bug")

    monkeypatch.setattr(world.transport, "add", broken)
    with pytest.raises(AddOutcomeUnknownError, match="a bug"):
        await asyncio.wait_for(writer.append(b"x"), 1)
    assert (await writer.close()).last_entry_id == -1


async def test_an_unexpected_error_of_an_ensemble_change_fails_the_writer(world: ClientWorld) -> None:
    writer = await world.client.create_ledger()

    async def broken(operation: str, path: str) -> Fault | None:
        if operation == "children":
            raise RuntimeError("a bug")
        return None

    world.store.fault_hook = broken
    world.break_bookie(writer.metadata.last_fragment.members[0])
    with pytest.raises(AddOutcomeUnknownError, match="a bug"):
        await asyncio.wait_for(asyncio.gather(*[writer.append(b"x") for _ in range(3)]), 1)
    assert (await writer.close()).last_entry_id == -1


async def test_an_entry_in_flight_when_the_writer_is_abandoned_is_in_doubt(world: ClientWorld) -> None:
    writer = await world.client.create_ledger(LedgerOptions(3, 3, 3))
    waiter = await writer.submit(b"x")
    await writer.abandon()
    with pytest.raises(AddOutcomeUnknownError):
        await waiter
    with pytest.raises(WriterClosedError):
        await writer.append(b"y")


async def test_closing_twice_closes_once(world: ClientWorld) -> None:
    writer = await world.client.create_ledger()
    await fill(writer, 0, 2)
    assert await writer.close() == await writer.close()
    with pytest.raises(WriterClosedError):
        await writer.append(b"x")


@pytest.mark.parametrize("shape", [(3, 3, 3), (3, 3, 2)])
async def test_a_cancelled_close_acknowledges_nothing_beyond_the_end_of_the_next_one(
    world: ClientWorld, shape: tuple[int, int, int]
) -> None:
    writer = await world.client.create_ledger(LedgerOptions(*shape))
    await fill(writer, 0, 3)
    for bookie in writer.metadata.last_fragment.members:
        world.transport.faults(bookie).delay_s = 0.05
    waiter = await writer.submit(b"late")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(writer.close(), 0.01)
    assert (await writer.close()).last_entry_id == 3
    assert await waiter == 3


async def test_two_concurrent_closes_agree(world: ClientWorld) -> None:
    writer = await world.client.create_ledger(LedgerOptions(3, 3, 3))
    for bookie in writer.metadata.last_fragment.members:
        world.transport.faults(bookie).delay_s = 0.02
    waiter = await writer.submit(b"x")
    first, second = await asyncio.gather(writer.close(), writer.close())
    assert first == second
    assert first.last_entry_id == await waiter == 0


async def test_closing_a_ledger_that_another_client_closed_at_another_end_is_in_doubt(world: ClientWorld) -> None:
    writer = await world.client.create_ledger()
    await fill(writer, 0, 2)
    ledger = await world.client.ports.ledgers.read(writer.ledger_id)
    await world.client.ports.ledgers.write(writer.ledger_id, ledger.metadata.closed(EntryId(0), 0), ledger.version)
    with pytest.raises(CloseOutcomeUnknownError):
        await writer.close()


async def test_the_reader_tries_the_next_replica(world: ClientWorld) -> None:
    async with await world.client.create_ledger(LedgerOptions(3, 3, 2)) as writer:
        await fill(writer, 0, 20)
    for bookie in writer.metadata.last_fragment.members[:2]:
        world.break_bookie(bookie)
    assert await world.payloads(writer) == [payload(index) for index in range(20)]


async def test_an_entry_that_no_replica_serves_is_unavailable_not_absent(world: ClientWorld) -> None:
    async with await world.client.create_ledger(LedgerOptions(3, 2, 2)) as writer:
        await fill(writer, 0, 5)
    for bookie in writer.metadata.last_fragment.members:
        world.break_bookie(bookie)
    reader = await world.client.open_ledger(writer.ledger_id)
    with pytest.raises(EntryUnavailableError) as failure:
        await reader.read(EntryId(2))
    assert set(failure.value.evidence.values()) == {Status.UNREACHABLE}


async def test_a_reader_opened_before_a_repair_finds_the_replaced_members(world: ClientWorld) -> None:
    async with await world.client.create_ledger(LedgerOptions(2, 2, 2)) as writer:
        await fill(writer, 0, 5)
    reader = await world.client.open_ledger(writer.ledger_id)
    old = writer.metadata.last_fragment.members
    spares = [bookie for bookie in BOOKIES if bookie not in old]
    for position in range(2):
        await world.repair(writer.ledger_id, position, spares[position], [EntryId(n) for n in range(5)])
        world.break_bookie(old[position])
    assert (await reader.read(EntryId(3))).payload == payload(3)
    assert reader.metadata.last_fragment.members == tuple(spares[:2])


async def test_a_reader_opened_before_an_ensemble_change_does_not_report_entries_lost(world: ClientWorld) -> None:
    writer = await world.client.create_ledger(LedgerOptions(3, 2, 2))
    await fill(writer, 0, 10)
    await writer.settle()
    reader = await world.client.open_ledger(writer.ledger_id)
    kept, *replaced = writer.metadata.last_fragment.members
    for bookie in replaced:
        world.break_bookie(bookie)
    await fill(writer, 10, 10)
    await writer.append(b"carries the last add confirmed of the entries before")
    for bookie in replaced:
        world.break_bookie(bookie, is_broken=False)
    assert kept in writer.metadata.last_fragment.members
    assert await reader.last_entry_id() >= 10
    assert (await reader.read(EntryId(10))).payload == payload(10)  # its write set was the two replaced bookies
    await writer.close()


async def test_a_reader_finds_the_end_although_all_members_were_replaced(world: ClientWorld) -> None:
    writer = await world.client.create_ledger(LedgerOptions(2, 2, 1))
    reader = await world.client.open_ledger(writer.ledger_id)
    for bookie in writer.metadata.last_fragment.members:
        world.break_bookie(bookie)
    await fill(writer, 0, 5)
    await writer.append(b"carries the last add confirmed of the entries before")
    assert await reader.last_entry_id() == 4
    await writer.close()


async def test_reading_a_ledger_that_was_deleted_meanwhile_raises_no_such_ledger(world: ClientWorld) -> None:
    async with await world.client.create_ledger() as writer:
        await fill(writer, 0, 1)
    reader = await world.client.open_ledger(writer.ledger_id)
    await world.client.delete_ledger(writer.ledger_id)
    for bookie in BOOKIES:
        world.break_bookie(bookie)
    with pytest.raises(NoSuchLedgerError):
        await reader.read(EntryId(0))


async def test_the_readable_end_of_an_open_ledger_never_goes_back(world: ClientWorld) -> None:
    writer = await world.client.create_ledger(LedgerOptions(3, 3, 2))
    *fast, slow = writer.metadata.last_fragment.members
    world.transport.faults(slow).is_request_lost = True
    await fill(writer, 0, 5)
    await writer.append(b"carries the last add confirmed of the entries before")
    reader = await world.client.open_ledger(writer.ledger_id)
    world.transport.faults(slow).is_request_lost = False
    assert await reader.last_entry_id() == 4
    for bookie in fast:
        world.break_bookie(bookie)
    assert await reader.refresh() == 4
    await writer.abandon()


async def test_an_open_ledger_is_readable_up_to_a_confirmed_entry(world: ClientWorld) -> None:
    writer = await world.client.create_ledger(LedgerOptions(3, 2, 2))
    await fill(writer, 0, 5)
    await writer.append(b"carries the last add confirmed of the entry before")
    reader = await world.client.open_ledger(writer.ledger_id)
    last = await reader.last_entry_id()
    assert last == 4
    assert (await reader.read(EntryId(4))).payload == payload(4)
    with pytest.raises(NoSuchEntryError):
        await reader.read(EntryId(6))
    await writer.close()
    assert await reader.refresh() == 5


async def test_the_wrong_password_is_refused(world: ClientWorld) -> None:
    async with await world.client.create_ledger(password=b"right") as writer:
        await fill(writer, 0, 1)
    with pytest.raises(WrongPasswordError):
        await world.client.open_ledger(writer.ledger_id, password=b"wrong")


async def test_bad_requests_are_refused_before_anything_is_stored(world: ClientWorld) -> None:
    with pytest.raises(InvalidQuorumError, match="ensemble size >= write quorum"):
        await world.client.create_ledger(LedgerOptions(2, 3, 2))
    with pytest.raises(NotEnoughBookiesError, match="needs 8 bookies and 7 are registered"):
        await world.client.create_ledger(LedgerOptions(8, 2, 2))
    assert [ledger async for ledger in world.client.ledgers()] == []
    writer = await world.client.create_ledger()
    with pytest.raises(EntryTooLargeError):
        await writer.append(bytes(ENTRY_PAYLOAD_MAX + 1))
    assert await writer.append(bytes(ENTRY_PAYLOAD_MAX)) == 0
    await writer.close()


async def test_a_deleted_ledger_is_gone_and_can_be_deleted_again(world: ClientWorld) -> None:
    async with await world.client.create_ledger() as writer:
        pass
    await world.client.delete_ledger(writer.ledger_id)
    await world.client.delete_ledger(writer.ledger_id)
    assert [ledger async for ledger in world.client.ledgers()] == []


async def test_abandoning_a_writer_leaves_the_ledger_open(world: ClientWorld) -> None:
    writer = await world.client.create_ledger()
    await fill(writer, 0, 3)
    await writer.abandon()
    with pytest.raises(WriterClosedError, match="abandoned"):
        await writer.close()
    assert (await world.client.ports.ledgers.read(writer.ledger_id)).metadata.state is LedgerState.OPEN


async def test_a_slow_bookie_does_not_let_the_pipeline_grow_without_bound(world: ClientWorld) -> None:
    writer = await world.client_with(pipeline_entries_max=10).create_ledger(LedgerOptions(3, 3, 2))
    world.transport.faults(writer.metadata.last_fragment.members[0]).is_request_lost = True
    waiters = [await writer.submit(b"x") for _ in range(10)]
    eleventh = asyncio.ensure_future(writer.submit(b"x"))
    await asyncio.gather(*waiters)
    assert not eleventh.done()
    await (await eleventh)
    await writer.close()


async def test_a_later_caller_does_not_overtake_one_that_waits_for_room(world: ClientWorld) -> None:
    writer = await world.client_with(pipeline_entries_max=1).create_ledger(LedgerOptions(1, 1, 1))
    first = await writer.submit(b"0")
    second = asyncio.ensure_future(writer.submit(b"1"))
    await asyncio.sleep(0)
    await first
    third = await writer.submit(b"2")
    assert [await (await second), await third] == [1, 2]
    await writer.close()


async def test_a_call_that_is_cancelled_while_it_waits_for_room_does_not_block_others(world: ClientWorld) -> None:
    writer = await world.client_with(pipeline_entries_max=1).create_ledger(LedgerOptions(1, 1, 1))
    world.transport.faults(writer.metadata.last_fragment.members[0]).delay_s = 0.02
    first = await writer.submit(b"0")
    second, third = (asyncio.ensure_future(writer.append(b"x")) for _ in range(2))
    await asyncio.sleep(0)
    second.cancel()
    assert [await first, await third] == [0, 1]
    await writer.close()


async def test_a_known_address_stays_valid_while_the_store_is_unreachable(world: ClientWorld) -> None:
    clock = ManualClock()
    resolver = RegistrationResolver(world.client.ports.registrations, clock, patience_s=0.01)
    known = await resolver.resolve(BOOKIES[0])
    world.store.suspend()
    clock.now_s += 60
    assert await asyncio.wait_for(resolver.resolve(BOOKIES[0]), 1) == known is not None
    world.store.resume()


async def test_a_client_that_fails_to_start_leaves_no_session(
    world: ClientWorld, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def session(hosts: str, *, session_timeout_s: float) -> MemoryStore:
        return store

    store = MemoryStore(world.cell)
    monkeypatch.setattr(ZooKeeperStore, "connect", session)
    missing = TlsSettings(ca=tmp_path / "none")
    with pytest.raises(TlsFilesError):
        await connect("zk+hierarchical://host:1/ledgers", security=BookieSecurity(missing))
    assert not store.session.is_connected


def test_the_synchronous_client_leaves_no_caller_waiting_when_it_is_closed() -> None:
    has_begun = threading.Event()

    async def long() -> None:
        has_begun.set()
        await asyncio.sleep(3600)

    loop = LoopThread()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(loop.run, long())
        assert has_begun.wait(20)
        loop.stop()
        loop.stop()
        with pytest.raises(concurrent.futures.CancelledError):
            waiting.result(20)


def test_a_synchronous_iterator_fetches_few_bytes_ahead() -> None:
    fetched: list[int] = []

    async def entries() -> AsyncGenerator[bytes, None]:
        for number in range(100):
            fetched.append(number)
            yield bytes(1 << 20)

    async def steps() -> None:
        for _ in range(1000):
            await asyncio.sleep(0)

    loop = LoopThread()
    try:
        consumed = 0
        for _ in loop.iterate(entries(), len):
            consumed += 1
            loop.run(steps())
            assert len(fetched) - consumed <= 2 * 8 + 1  # those of this batch and the next, and a waiting one
        assert consumed == 100
    finally:
        loop.stop()


def test_a_synchronous_iterator_abandoned_with_a_full_buffer_closes_its_source() -> None:
    is_closed = threading.Event()

    async def numbers() -> AsyncGenerator[int, None]:
        try:
            while True:
                yield 1
        finally:
            is_closed.set()

    async def steps() -> None:
        for _ in range(1000):
            await asyncio.sleep(0)

    loop, source = LoopThread(), numbers()  # the source is still referenced, so its finalizer does not run
    try:
        iterator = loop.iterate(source)
        assert next(iterator) == 1
        loop.run(steps())
        del iterator
        assert is_closed.wait(20)
    finally:
        loop.stop()


def test_a_call_during_the_close_ends_as_well() -> None:
    async def short() -> None:
        await asyncio.sleep(0)

    def call_repeatedly(loop: LoopThread) -> None:
        while True:
            loop.run(short())

    for _ in range(50):
        loop = LoopThread()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            calling = pool.submit(call_repeatedly, loop)
            loop.run(short())
            loop.stop()
            with pytest.raises((concurrent.futures.CancelledError, RuntimeError)):
                calling.result(20)


def test_a_synchronous_client_may_be_closed_by_several_threads() -> None:
    class Connected(ConnectedBookKeeper):
        def __init__(self) -> None:
            pass

        @override
        async def close(self) -> None:
            await asyncio.sleep(0)

    for _ in range(100):
        client = SyncBookKeeper(LoopThread(), Connected())
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            for closing in [pool.submit(client.close) for _ in range(3)]:
                closing.result(20)
