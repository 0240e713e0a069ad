"""Following a ledger while it is written: which entries become readable, when, and how following ends."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest
from typing_extensions import override

from bookie.client.errors import AddOutcomeUnknownError, LastConfirmedUnknownError, NoSuchEntryError
from bookie.client.ports import ClientPorts
from bookie.client.reader.reader import LedgerReader
from bookie.client.recovery.recovery import recover_ledger
from bookie.client.writer.writer import LedgerWriter
from bookie.metadata.ledgers.ledgers import NoSuchLedgerError
from bookie.metadata.ledgers.serde import UnreadableMetadataError
from bookie.metadata.store.memory import MemoryCell, MemoryStore, ReadableTree
from bookie.model.errors import BkhealError
from bookie.model.ids import BookieId, EntryId
from bookie.model.packet import pack_lac
from bookie.runtime.fault_points import inject_faults
from bookie.wire.port import EntryResult, LacReply, Status
from bookie.wire.requests import Read, ReadLac, WaitLac, WriteLac
from tests.worlds.ledgers import LEDGER, PASSWORD
from tests.worlds.recovery import DIGEST, KEY, Asked, Proceed, RecoveryWorld, a_world, packet, transport_of
from tests.worlds.virtual_time import in_virtual_time, run_virtual


async def reader_of(world: RecoveryWorld, ports: ClientPorts | None = None) -> LedgerReader:
    return LedgerReader(ports or world.ports, await world.ledgers.read(LEDGER), DIGEST)


async def collect(reader: LedgerReader, first: int, into: list[int], **options: Any) -> None:
    async for entry in reader.tail(EntryId(first), **options):
        assert entry.entry_id == first + len(into)
        into.append(entry.entry_id)


@in_virtual_time
async def test_a_closed_ledger_is_read_to_its_end() -> None:
    async with a_world("a b c") as world:
        await world.create((0, "a b c"), quorum=(3, 2), filled_to=9)
        await world.recover()
        seen: list[int] = []
        await collect(await reader_of(world), 4, seen)
        assert seen == list(range(4, 10))
        await collect(await reader_of(world), 10, [])
        await collect(await reader_of(world), 100, [])


@in_virtual_time
async def test_a_negative_start_is_refused() -> None:
    async with a_world("a b c") as world:
        await world.create((0, "a b c"), quorum=(3, 2))
        with pytest.raises(NoSuchEntryError):
            await collect(await reader_of(world), -1, [])


@in_virtual_time
async def test_entries_are_returned_as_they_are_confirmed() -> None:
    async with a_world("a b c") as world:
        ledger = await world.create((0, "a b c"), quorum=(3, 2))
        seen: list[int] = []
        following = asyncio.create_task(collect(await reader_of(world), 0, seen))
        for entry_id in range(5):
            await world.put_through(ledger, entry_id)
            await world.clock.sleep(0.05)
            assert seen == list(range(entry_id))  # the newest entry may still disappear
        for name in "abc":
            hint = WriteLac(LEDGER, KEY, pack_lac(DIGEST, LEDGER, 4))
            assert (await world.transport.ask(BookieId(name), hint, 1)).status is Status.OK
        await world.clock.sleep(0.05)
        assert seen == list(range(5))
        await world.put_through(ledger, 5)
        await world.recover()
        await following
        assert seen == list(range(6))


@in_virtual_time
async def test_an_idle_ledger_costs_one_poll_of_each_member_and_one_metadata_read_a_second() -> None:
    async with a_world("a b c") as world:
        await world.create((0, "a b c"), quorum=(3, 2))
        following = asyncio.create_task(collect(await reader_of(world), 0, []))
        await world.clock.sleep(10.5)
        assert 30 <= world.transport.count(WaitLac) <= 36
        following.cancel()


@in_virtual_time
async def test_bookies_that_refuse_long_polls_are_not_polled_in_a_busy_loop() -> None:
    async with a_world("a b c") as world:
        await world.create((0, "a b c"), quorum=(3, 2))

        async def at_once(asked: Asked, proceed: Proceed) -> Any:
            return LacReply(Status.TOO_MANY_REQUESTS) if isinstance(asked, WaitLac) else await proceed()

        world.transport.every = at_once
        following = asyncio.create_task(collect(await reader_of(world), 0, []))
        await world.clock.sleep(10.5)
        assert world.transport.count(WaitLac) <= 36
        following.cancel()


@in_virtual_time
async def test_bookies_without_a_free_slot_for_a_poll_are_polled_again_during_the_wait() -> None:
    async with a_world("a b c") as world:
        ledger = await world.create((0, "a b c"), quorum=(3, 2))
        for entry_id in range(2):
            await world.put_through(ledger, entry_id)

        async def at_once(asked: Asked, proceed: Proceed) -> Any:
            if not isinstance(asked, WaitLac):
                return await proceed()
            return await world.services[BookieId("b")].answer("", replace(asked, wait_s=0.0))

        world.transport.every = at_once
        seen: list[int] = []
        following = asyncio.create_task(collect(await reader_of(world), 0, seen, poll_s=20.0))
        await world.clock.sleep(5)
        assert seen == [0]
        assert world.transport.count(WaitLac) <= 3 * (2 * 5 + 2)
        await world.put_through(ledger, 2)
        await world.clock.sleep(1)
        assert seen == [0, 1]
        following.cancel()


@pytest.mark.parametrize(("late_s", "options"), [(1.5, {}), (0.2, {"poll_s": 0.1})])
def test_late_answers_of_members_are_used(late_s: float, options: dict[str, float]) -> None:
    @in_virtual_time
    async def scenario() -> None:
        async with a_world("a b c") as world:
            ledger = await world.create((0, "a b c"), quorum=(3, 2))

            async def late(asked: Asked, proceed: Proceed) -> Any:
                if isinstance(asked, WaitLac):
                    await world.clock.sleep(late_s)
                return await proceed()

            world.transport.every = late
            seen: list[int] = []
            following = asyncio.create_task(collect(await reader_of(world), 0, seen, **options))
            for entry_id in range(4):
                await world.put_through(ledger, entry_id)
                await world.clock.sleep(3)
                assert seen == list(range(entry_id))
            assert world.transport.count(WaitLac) <= 3 * (12 / late_s + 1)
            following.cancel()
            await asyncio.wait([following])
            assert not [task for task in asyncio.all_tasks() if task.get_name() == "last add confirmed"]

    scenario()


@in_virtual_time
async def test_a_hanging_member_does_not_delay_the_others() -> None:
    async with a_world("a b c") as world:
        ledger = await world.create((0, "a b c"), quorum=(3, 2))
        world.hang("a")
        seen: list[int] = []
        following = asyncio.create_task(collect(await reader_of(world), 0, seen))
        await world.clock.sleep(3)
        for entry_id in range(3):
            await world.put_through(ledger, entry_id)
        await world.clock.sleep(3)
        assert seen == [0, 1]
        await recover_ledger(world.client(), LEDGER)
        await following
        assert seen == [0, 1, 2]


@in_virtual_time
async def test_hanging_members_do_not_delay_the_end_of_the_ledger() -> None:
    async with a_world("a b c") as world:
        await world.create((0, "a b c"), quorum=(3, 2))
        world.hang("a", "b", "c")
        following = asyncio.create_task(collect(await reader_of(world), 0, []))
        await world.clock.sleep(3)
        await world.recover(world.client())
        async with asyncio.timeout(1.5):
            await following


@in_virtual_time
async def test_a_deleted_ledger_ends_the_tail() -> None:
    async with a_world("a b c") as world:
        await world.create((0, "a b c"), quorum=(3, 2))
        following = asyncio.create_task(collect(await reader_of(world), 0, []))
        await world.clock.sleep(3)
        await world.ledgers.delete(LEDGER)
        with pytest.raises(NoSuchLedgerError):
            await following


@in_virtual_time
async def test_a_ledger_that_a_stale_server_does_not_have_yet_is_followed() -> None:
    class BehindStore(MemoryStore):
        """A store that reads from a server without any data before its first ``sync``."""

        is_behind = False

        @override
        def view(self) -> ReadableTree:
            return MemoryCell() if self.is_behind else super().view()

        @override
        async def sync(self, path: str) -> None:
            await super().sync(path)
            self.is_behind = False

    async with a_world("a b c") as world:
        await world.create((0, "a b c"), quorum=(3, 2), filled_to=3)
        store = BehindStore(world.cell)
        seen: list[int] = []
        following = asyncio.create_task(collect(await reader_of(world, world.client(store=store)), 0, seen))
        await world.clock.sleep(0.5)
        store.is_behind = True
        await world.clock.sleep(2)
        assert not store.is_behind
        await world.recover()
        await following
        assert seen == [0, 1, 2, 3]
        await store.close()


@in_virtual_time
async def test_unreadable_metadata_ends_the_tail() -> None:
    async with a_world("a b c") as world:
        await world.create((0, "a b c"), quorum=(3, 2))
        following = asyncio.create_task(collect(await reader_of(world), 0, []))
        await world.clock.sleep(3)
        await world.store.set(world.ledgers.path(LEDGER), b"nonsense", -1)
        with pytest.raises(UnreadableMetadataError):
            await following


@in_virtual_time
async def test_an_unreachable_store_does_not_end_the_tail() -> None:
    async with a_world("a b c") as world:
        ledger = await world.create((0, "a b c"), quorum=(3, 2))
        ports = world.client()
        seen: list[int] = []
        following = asyncio.create_task(collect(await reader_of(world, ports), 0, seen))
        await world.clock.sleep(3)
        store: Any = ports.ledgers._store
        store.suspend()
        for entry_id in range(3):
            await world.put_through(ledger, entry_id)
        await world.clock.sleep(60)
        assert seen == [0, 1]
        store.resume()
        await world.recover()
        await following
        assert seen == [0, 1, 2]


@pytest.mark.parametrize("status", [Status.LIMBO, Status.IO_ERROR, Status.TIMEOUT])
def test_quorum_last_add_confirmed_needs_coverage(status: Status) -> None:
    async def scenario() -> None:
        async with a_world("a b c") as world:
            await world.create((0, "a b c"), quorum=(3, 2), filled_to=4)

            async def without_answer(asked: Asked, proceed: Proceed) -> Any:
                return LacReply(status) if isinstance(asked, ReadLac) else await proceed()

            world.transport.hooks["a"] = without_answer
            assert await (await reader_of(world)).quorum_last_add_confirmed() == 3
            world.transport.hooks["b"] = without_answer
            with pytest.raises(LastConfirmedUnknownError):
                await (await reader_of(world)).quorum_last_add_confirmed()
            assert await (await reader_of(world)).last_entry_id() == 3

    run_virtual(scenario())


@pytest.mark.parametrize("status", [Status.CORRUPT, Status.IO_ERROR, Status.LIMBO])
def test_a_bookie_that_cannot_read_its_last_entry_does_not_count_for_coverage(status: Status) -> None:
    async def scenario() -> None:
        async with a_world("a b c") as world:
            await world.create((0, "a b c"), quorum=(3, 2), filled_to=4)

            async def unreadable(asked: Asked, proceed: Proceed) -> Any:
                if not isinstance(asked, ReadLac):
                    return await proceed()
                return LacReply(Status.OK, last_entry=EntryResult(EntryId(4), status))

            world.transport.hooks.update(a=unreadable, b=unreadable)
            with pytest.raises(LastConfirmedUnknownError):
                await (await reader_of(world)).quorum_last_add_confirmed()

    run_virtual(scenario())


@in_virtual_time
async def test_a_quorum_read_queries_the_newest_ensemble_and_never_fences() -> None:
    async with a_world("a b c d e f") as world:
        ledger = await world.create((0, "a b c"), quorum=(3, 2), filled_to=3)
        reader = await reader_of(world)
        assert await reader.quorum_last_add_confirmed() == 2
        metadata = ledger.metadata.with_last_fragment(EntryId(4), tuple(map(BookieId, "def")))
        changed = await world.ledgers.write(LEDGER, metadata, ledger.version)
        assert await reader.quorum_last_add_confirmed() == 3  # the minimum: the fragment begins with entry 4
        await world.put_through(changed, 4)
        await world.put_through(changed, 5)
        assert await reader.quorum_last_add_confirmed() == 4
        assert await reader.last_entry_id() == 4
        await world.recover()
        assert await reader.quorum_last_add_confirmed() == 5


@in_virtual_time
async def test_the_last_confirmed_entry_never_goes_back() -> None:
    async with a_world("a b c") as world:
        await world.create((0, "a b c"), quorum=(3, 2), filled_to=2)
        await world.put("a", packet(3), packet(4))
        reader = await reader_of(world)
        assert await reader.refresh() in (1, 3)
        world.stop_listening("b", "c")
        assert await reader.refresh() == 3
        world.hang("a")
        for name in "bc":
            world.listen(name)
        assert await reader.refresh() == 3


@in_virtual_time
async def test_a_forged_last_add_confirmed_is_ignored() -> None:
    async with a_world("a b c") as world:
        await world.create((0, "a b c"), quorum=(3, 2), filled_to=2)

        async def forged(asked: Asked, proceed: Proceed) -> Any:
            if not isinstance(asked, ReadLac | WaitLac):
                return await proceed()
            return LacReply(Status.OK, explicit=pack_lac(DIGEST, LEDGER, 9)[:-1] + b"?")

        world.transport.hooks["a"] = forged
        reader = await reader_of(world)
        assert await reader.last_entry_id() == 1
        assert await reader.quorum_last_add_confirmed() == 1


@in_virtual_time
async def test_an_entry_that_confirms_itself_is_ignored() -> None:
    async with a_world("a b c") as world:
        await world.create((0, "a b c"), quorum=(3, 2), filled_to=2)
        await world.put("a", packet(3, lac=3))
        world.hang("b")
        reader = await reader_of(world)
        assert await reader.last_entry_id() == 1
        with pytest.raises(LastConfirmedUnknownError):
            await reader.quorum_last_add_confirmed()


@pytest.mark.parametrize("seed", range(40))
def test_no_dirty_reads_while_a_writer_and_recoveries_compete(seed: int) -> None:
    """Every entry that a follower has seen is in the closed ledger, byte for byte, and followers skip no entry."""

    async def scenario() -> None:
        rng = random.Random(seed)
        async with a_world("a b c d e f") as world:
            names, quorum = rng.choice([("a b c", (3, 2)), ("a b c", (2, 2)), ("a b c d e", (3, 2))])
            await world.create((0, names), quorum=quorum)
            at_work = world.client(seed=seed, close_timeout_s=3)

            def late(transport: Any) -> None:
                async def hook(asked: Asked, proceed: Proceed) -> Any:
                    await world.clock.sleep(rng.random() / 2)
                    return await proceed()

                transport.every = hook

            late(transport_of(at_work))
            writer = LedgerWriter(at_work, await world.ledgers.read(LEDGER), DIGEST, PASSWORD)

            async def write() -> None:
                try:
                    for index in range(40):
                        await writer.submit(bytes([index]) * 5)
                        await world.clock.sleep(rng.random() / 5)
                    await writer.close()
                except BkhealError:
                    await writer.abandon()

            async def trouble() -> None:
                await world.clock.sleep(rng.random() * 3)
                transport_of(at_work).faults(BookieId(rng.choice(names.split()))).is_unreachable = True

            async def recover() -> None:
                if rng.random() < 0.7:
                    await world.clock.sleep(rng.random() * 12)
                    ports = world.client(seed=seed + 1)
                    late(transport_of(ports))
                    await recover_ledger(ports, LEDGER)

            async def follow() -> list[bytes]:
                ports = world.client(seed=seed + 2, read_chunk_entries=rng.choice([1, 3, 100]))
                late(transport_of(ports))
                reader = await reader_of(world, ports)
                seen: list[bytes] = []
                while True:
                    try:
                        async for entry in reader.tail(EntryId(len(seen))):
                            assert entry.entry_id == len(seen)
                            seen.append(entry.payload)
                        return seen
                    except BkhealError:
                        await world.clock.sleep(0.5)

            followers = [asyncio.create_task(follow()) for _ in range(3)]
            with inject_faults(lambda name: name.startswith(("reader.", "lac_board.")) and rng.random() < 0.1):
                outcomes = await asyncio.gather(write(), trouble(), recover(), return_exceptions=True)
                for outcome in outcomes:
                    assert not isinstance(outcome, BaseException) or isinstance(outcome, BkhealError), outcome
                metadata = await world.recover()
                assert metadata.last_entry_id is not None
                async with asyncio.timeout(120):
                    seen = await asyncio.gather(*followers)
            assert seen == [[bytes([index]) * 5 for index in range(metadata.last_entry_id + 1)]] * 3

    run_virtual(scenario())


@in_virtual_time
async def test_a_fenced_writer_and_its_tail_reader_agree() -> None:
    async with a_world("a b c") as world:
        await world.create((0, "a b c"), quorum=(3, 2))
        writer = LedgerWriter(world.client(), await world.ledgers.read(LEDGER), DIGEST, PASSWORD)
        seen: list[int] = []
        following = asyncio.create_task(collect(await reader_of(world), 0, seen))
        for index in range(5):
            await writer.append(bytes([index]))
        metadata = await world.recover()
        with pytest.raises(AddOutcomeUnknownError):
            await writer.append(b"late")
        await writer.abandon()
        await following
        assert metadata.last_entry_id == 4
        assert seen == list(range(5))


@pytest.mark.parametrize("confirmed", [True, False])
def test_a_piggybacked_entry_is_used_only_if_the_answer_confirms_it(confirmed: bool) -> None:
    async def scenario() -> None:
        async with a_world("a b c") as world:
            await world.create((0, "a b c"), quorum=(3, 2))
            lac = pack_lac(DIGEST, LEDGER, 0 if confirmed else -1)

            async def generous(asked: Asked, proceed: Proceed) -> Any:
                if not isinstance(asked, WaitLac):
                    return await proceed()
                return LacReply(Status.OK, explicit=lac, entry=EntryResult(EntryId(0), Status.OK, packet(0)))

            world.transport.every = generous
            seen: list[int] = []
            following = asyncio.create_task(collect(await reader_of(world), 0, seen))
            await world.clock.sleep(0.5)
            assert seen == ([0] if confirmed else [])
            assert world.transport.count(Read) == 0
            following.cancel()

    run_virtual(scenario())


@in_virtual_time
async def test_a_start_in_the_future_skips_the_entries_before_it() -> None:
    async with a_world("a b c") as world:
        ledger = await world.create((0, "a b c"), quorum=(3, 2))
        seen: list[int] = []
        following = asyncio.create_task(collect(await reader_of(world), 3, seen))
        for entry_id in range(6):
            await world.clock.sleep(0.05)
            await world.put_through(ledger, entry_id)
        await world.clock.sleep(0.05)
        assert seen == [3, 4]
        following.cancel()
