"""Recovery under concurrency: other recoveries, the writer, repair, and a store whose answers are lost."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest

from bookie.client.errors import AddOutcomeUnknownError, CloseOutcomeUnknownError, RecoveryNotPossibleError
from bookie.client.recovery.recovery import recover_ledger
from bookie.client.writer.writer import LedgerWriter
from bookie.metadata.bookies.incarnations import Incarnations
from bookie.metadata.layout import cookie_path
from bookie.metadata.ledgers.ledgers import NoSuchLedgerError
from bookie.metadata.nodes import create_with_parents
from bookie.metadata.port import StoreUnavailableError
from bookie.metadata.store.memory import Fault
from bookie.model.errors import BkhealError
from bookie.model.ids import BookieId, EntryId
from bookie.model.metadata import Fragment, LedgerState
from bookie.runtime.fault_points import inject_faults
from bookie.wire.port import AddBatch, AddReply, ReadReply, Status
from bookie.wire.requests import Fence, ListEntries, Read
from tests.worlds.cluster import ROOT
from tests.worlds.ledgers import LEDGER, PASSWORD, names
from tests.worlds.recovery import (
    DIGEST,
    KEY,
    Asked,
    Proceed,
    RecoveryWorld,
    a_world,
    closed_at,
    ends,
    packet,
    transport_of,
)
from tests.worlds.virtual_time import in_virtual_time, run_virtual


async def shuffled(world: RecoveryWorld, rng: random.Random, ports: Any) -> None:
    """Delay each request and each reply of a client by a random time."""

    async def late(asked: Asked, proceed: Proceed) -> Any:
        await world.clock.sleep(rng.random())
        reply = await proceed()
        await world.clock.sleep(rng.random())
        return reply

    transport_of(ports).every = late


@pytest.mark.parametrize("seed", range(40))
def test_four_concurrent_recoveries_agree(seed: int) -> None:
    """Catalogue 33: members fail for one recovery and not for another."""

    async def scenario() -> None:
        rng = random.Random(seed)
        async with a_world("a b c d e f") as world:
            await world.create((0, "a b c d"), quorum=(3, 2), filled_to=5)
            for entry_id in range(6, 12):
                for i in range(3):
                    if rng.random() < 0.5:
                        await world.put("abcd"[(entry_id + i) % 4], packet(entry_id, lac=5))
            clients = [world.client(seed=index, recovery_read_entries=rng.choice([1, 3, 256])) for index in range(4)]
            for ports in clients:
                await shuffled(world, rng, ports)
                if rng.random() < 0.5:
                    transport_of(ports).faults(BookieId(rng.choice("abcd"))).is_request_lost = True
            results = await asyncio.gather(
                *(recover_ledger(ports, LEDGER) for ports in clients), return_exceptions=True
            )
            closed = [result for result in results if not isinstance(result, BaseException)]
            for result in results:
                assert not isinstance(result, BaseException) or isinstance(result, RecoveryNotPossibleError)
            stored = await world.recover()
            assert {ends(one.metadata) for one in closed} <= {ends(stored)}
            assert {one.metadata.fragments for one in closed} <= {stored.fragments}
            assert stored.last_entry_id is not None
            assert stored.last_entry_id >= 5
            await world.assert_durable(stored)

    run_virtual(scenario())


async def writer_of(world: RecoveryWorld, ports: Any) -> LedgerWriter:
    ledger = await world.ledgers.read(LEDGER)
    return LedgerWriter(ports, ledger, DIGEST, PASSWORD)


@pytest.mark.parametrize("seed", range(40))
def test_entries_acknowledged_by_a_running_writer_are_kept(seed: int) -> None:
    """Catalogue 32, 49 and 54: several recoveries, an active writer, and members that leave and return."""

    async def scenario() -> None:
        rng = random.Random(seed)
        async with a_world("a b c d e f") as world:
            shape = rng.choice([((3, 2), "a b c"), ((2, 2), "a b c"), ((3, 2), "a b c d e"), ((3, 3), "a b c")])
            await world.create((0, shape[1]), quorum=shape[0])
            at_work = world.client(seed=seed, close_timeout_s=3)
            await shuffled(world, rng, at_work)
            writer = await writer_of(world, at_work)
            acked: list[int] = []

            async def write() -> None:
                try:
                    for index in range(30):
                        waiter = await writer.submit(bytes([index]) * 10)
                        waiter.add_done_callback(
                            lambda done: acked.append(done.result()) if not done.exception() else None
                        )
                        await world.clock.sleep(rng.random() / 4)
                    await writer.close()
                except (AddOutcomeUnknownError, CloseOutcomeUnknownError):
                    await writer.abandon()

            async def trouble() -> None:
                for _ in range(3):
                    name = BookieId(rng.choice("abcdef"))
                    faults = transport_of(at_work).faults(name)
                    faults.is_unreachable = True
                    await world.clock.sleep(rng.random() * 2)
                    faults.is_unreachable = False

            async def recover(index: int) -> Any:
                ports = world.client(seed=100 + index)
                await shuffled(world, rng, ports)
                await world.clock.sleep(rng.random() * 6)
                return await recover_ledger(ports, LEDGER)

            outcomes = await asyncio.gather(write(), trouble(), recover(0), recover(1), return_exceptions=True)
            for outcome in outcomes:
                assert not isinstance(outcome, BaseException) or isinstance(outcome, BkhealError), outcome
            metadata = await world.recover()
            assert metadata.last_entry_id is not None
            assert metadata.last_entry_id >= max(acked, default=-1)
            for outcome in outcomes[2:]:
                assert isinstance(outcome, BaseException) or ends(outcome.metadata) == ends(metadata)
            for entry_id in range(metadata.last_entry_id + 1):
                held = await world.copies(entry_id)
                fragment = metadata.fragments[metadata.fragment_index(EntryId(entry_id))]
                assert len(set(fragment.members) & held.keys()) >= metadata.ack_quorum
                assert len(set(held.values())) == 1

    run_virtual(scenario())


@in_virtual_time
async def test_a_writer_cannot_commit_after_another_client_closed() -> None:
    """#2614: a bookie that did not answer the fence later answers "never stored", and refuses the writer afterwards."""
    async with a_world("a b c") as world:
        await world.create((0, "a b c"), quorum=(3, 2))
        ports = world.client()
        transport = transport_of(ports)

        async def no_fence(asked: Asked, proceed: Proceed) -> Any:
            if isinstance(asked, Fence):
                await world.clock.sleep(1.5)  # the other members cover the ensemble first
            return await proceed()

        transport.hooks["a"] = no_fence
        assert ends(await world.recover(ports)) == closed_at(-1)
        answers = [
            (await storage.add(AddBatch(LEDGER, KEY, [packet(0)]))).status for storage in world.storages.values()
        ]
        assert answers.count(Status.OK) < 2


@in_virtual_time
async def test_a_bookie_that_denies_an_entry_to_a_recovery_is_fenced() -> None:
    async with a_world("a b c") as world:
        await world.create((0, "a b c"), quorum=(3, 2))

        async def cut_off(asked: Asked, proceed: Proceed) -> Any:
            if isinstance(asked, Fence):
                await asyncio.sleep(100)
            return await proceed()

        world.transport.hooks["a"] = cut_off
        await world.recover()
        asked = {bookie for bookie, request in world.transport.calls if isinstance(request, Read)}
        assert "a" in asked
        for bookie in asked:
            reply = await world.storages[BookieId(bookie)].add(AddBatch(LEDGER, KEY, [packet(0)]))
            assert reply.status is Status.FENCED


async def change(world: RecoveryWorld, **changes: Any) -> None:
    ledger = await world.ledgers.read(LEDGER)
    await world.ledgers.write(LEDGER, replace(ledger.metadata, **changes), ledger.version)


def once(world: RecoveryWorld, kind: type[Asked], action: Any) -> None:
    """Run an action before the next request of this kind to bookie a."""
    pending = [action]

    async def hook(asked: Asked, proceed: Proceed) -> Any:
        if isinstance(asked, kind) and pending:
            await pending.pop()()
        return await proceed()

    world.transport.hooks["a"] = hook


@in_virtual_time
async def test_a_member_with_new_disks_is_fenced_again() -> None:
    """R132: an Apache bookie loses its fences with its disks, so an ack quorum would accept adds of the writer."""
    async with a_world("a b c") as world:
        await world.create((0, "a b c"), quorum=(3, 2), filled_to=3)
        cookie = cookie_path(ROOT, BookieId("b"))
        await create_with_parents(world.store, cookie, b"the former disks", ROOT)
        away = world.transport.faults(BookieId("c"))
        away.is_unreachable = True

        async def new_disks() -> None:
            await world.store.delete(cookie, 0)
            await world.store.create(cookie, b"other disks")
            await world.start_bookie("b")
            away.is_unreachable = False
            for name in "bc":
                added = await world.storages[BookieId(name)].add(AddBatch(LEDGER, KEY, [packet(4)]))
                assert added.status is Status.OK

        once(world, ListEntries, new_disks)
        assert ends(await world.recover()) == closed_at(4)
        for storage in world.storages.values():
            assert (await storage.add(AddBatch(LEDGER, KEY, [packet(5)]))).status is Status.FENCED


@in_virtual_time
async def test_an_older_fragment_repaired_meanwhile_is_kept() -> None:
    async with a_world("a b c d e f g") as world:
        ledger = await world.create((0, "e f d"), (4, "a b c"), quorum=(3, 2), filled_to=6)
        repaired = (Fragment(EntryId(0), names("e f g")), ledger.metadata.last_fragment)

        async def repair() -> None:
            await change(world, fragments=repaired)

        once(world, Read, repair)
        metadata = await world.recover()
        assert ends(metadata) == closed_at(6)
        assert metadata.fragments == repaired


@in_virtual_time
async def test_a_length_is_read_from_the_bookie_to_which_repair_moved_the_entry() -> None:
    async with a_world("a b c d e f g") as world:
        ledger = await world.create((0, "d e f"), (4, "a b c"), quorum=(1, 1), filled_to=2)
        await world.put("g", packet(3))
        await change(world, fragments=(Fragment(EntryId(0), names("d e f")), ledger.metadata.last_fragment))

        async def repair() -> None:
            await change(world, fragments=(Fragment(EntryId(0), names("g e f")), ledger.metadata.last_fragment))

        once(world, Fence, repair)
        assert ends(await world.recover()) == closed_at(3)


@in_virtual_time
async def test_a_length_is_read_from_any_member_if_one_has_lost_the_confirmed_entry() -> None:
    """With two copies and an ack quorum of two, one denial would prove that an unconfirmed entry is absent."""
    async with a_world("a b c d e f") as world:
        await world.create((0, "a b c"), (3, "d e f"), quorum=(2, 2), filled_to=1)
        await world.put("a", packet(2))
        assert await world.holds("c") == [1]
        assert ends(await world.recover()) == closed_at(2)


@in_virtual_time
async def test_a_changed_last_fragment_restarts_the_recovery() -> None:
    """Catalogue 45: answers of bookies that are no longer members do not count."""
    async with a_world("a b c d e f") as world:
        ledger = await world.create((0, "a b c"), quorum=(3, 2), filled_to=3)
        for name in "def":
            await world.put(name, packet(4), packet(5))

        async def another() -> None:
            await change(world, fragments=(ledger.metadata.fragments[0], Fragment(EntryId(4), names("d e f"))))

        once(world, Read, another)
        metadata = await world.recover()
        assert ends(metadata) == closed_at(5)
        assert [fragment.first_entry_id for fragment in metadata.fragments] == [0, 4]


@in_virtual_time
async def test_a_last_fragment_that_keeps_changing_aborts_the_recovery() -> None:
    async with a_world("a b c d") as world:
        await world.create((0, "a b c"), quorum=(3, 2), filled_to=3)

        async def swap(asked: Asked, proceed: Proceed) -> Any:
            if isinstance(asked, Fence):
                last = (await world.metadata()).last_fragment
                other = names("a b d") if last.members == names("a b c") else names("a b c")
                await change(world, fragments=(Fragment(EntryId(0), other),))
            return await proceed()

        world.transport.hooks["a"] = swap
        with pytest.raises(RecoveryNotPossibleError, match="keeps changing"):
            await world.recover()
        assert (await world.metadata()).state is LedgerState.IN_RECOVERY


@in_virtual_time
async def test_an_ensemble_changed_before_the_takeover_is_used() -> None:
    async with a_world("a b c d e f") as world:
        ledger = await world.create((0, "a b c"), quorum=(3, 2), filled_to=3)
        for name in "def":
            await world.put(name, packet(4))
        pending = [True]

        async def hook(operation: str, path: str) -> Fault | None:
            if operation == "set" and pending:
                pending.clear()
                await change(world, fragments=(ledger.metadata.fragments[0], Fragment(EntryId(4), names("d e f"))))
            return None

        ports = world.client()
        store: Any = ports.ledgers._store
        store.fault_hook = hook
        assert ends(await world.recover(ports)) == closed_at(4)


@in_virtual_time
async def test_an_end_set_by_another_client_meanwhile_is_kept() -> None:
    """Catalogue 48: the other client's end is kept. The unresponsive bookie was marked before, which is only a hint."""
    async with a_world("a b c") as world:
        await world.create((0, "a b c"), quorum=(3, 2), filled_to=3)
        await world.put("c", packet(4))

        async def close() -> None:
            await change(world, state=LedgerState.CLOSED, last_entry_id=EntryId(3), length=40)

        once(world, AddBatch, close)
        world.hang("b")
        assert ends(await world.recover()) == closed_at(3)
        assert await world.marked() == ("b",)


@pytest.mark.parametrize("changes", [0, 1])
def test_a_ledger_deleted_and_created_again_meanwhile_is_not_recovered(changes: int) -> None:
    """After one change, the metadata of the other ledger has the same version as that in recovery."""

    @in_virtual_time
    async def story() -> None:
        async with a_world("a b c") as world:
            await world.create((0, "a b c"), quorum=(3, 2))

            async def replaced() -> None:
                await world.ledgers.delete(LEDGER)
                await world.create((0, "a b c"), quorum=(3, 2))
                for version in range(changes):
                    await world.ledgers.write(LEDGER, await world.metadata(), version)

            once(world, Read, replaced)
            with pytest.raises(NoSuchLedgerError):
                await world.recover()
            assert (await world.metadata()).state is LedgerState.OPEN

    story()


@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("operation", ["set", "sync", "get"])
@pytest.mark.parametrize("nth", range(4))
def test_a_single_store_failure_does_no_harm(operation: str, nth: int, fault: Fault) -> None:
    async def scenario() -> None:
        async with a_world("a b c d") as world:
            await world.create((0, "a b c"), quorum=(3, 2), filled_to=3)
            ports = world.client()
            count = 0

            async def hook(asked: str, path: str) -> Fault | None:
                nonlocal count
                if asked != operation or path != world.ledgers.path(LEDGER):
                    return None
                count += 1
                return fault if count == nth + 1 else None

            store: Any = ports.ledgers._store
            store.fault_hook = hook
            try:
                metadata = await world.recover(ports)
            except StoreUnavailableError:
                assert operation in ("sync", "get")
                assert nth == 0  # the first read
                metadata = await world.recover(ports)
            assert ends(metadata) == closed_at(3)
            assert (await world.ledgers.read(LEDGER)).metadata == metadata

    run_virtual(scenario())


@in_virtual_time
async def test_the_recovery_survives_lost_answers_to_its_close() -> None:
    async with a_world("a b c") as world:
        await world.create((0, "a b c"), quorum=(3, 2), filled_to=3)
        world.hang("c")
        ports = world.client()
        transport_of(ports).faults(BookieId("c")).is_request_lost = True

        async def hook(operation: str, path: str) -> Fault | None:
            return Fault.LOSE_ANSWER if operation == "set" else None

        store: Any = ports.ledgers._store
        store.fault_hook = hook
        assert ends(await world.recover(ports)) == closed_at(3)
        assert await world.marked() == ("c",)


def test_a_recovery_that_dies_at_any_step_is_completed_by_the_next_one() -> None:
    """Catalogue 58: cancelled after each turn of the loop, with a spare in use.

    The next recovery must agree with all earlier ones.
    """

    async def scenario(turns: int) -> bool:
        async with a_world("a b c d") as world:
            ledger = await world.create((0, "a b c"), quorum=(3, 2), filled_to=3)
            await world.put("c", packet(4))
            await world.put("b", packet(5, lac=3))
            ports = world.client(recovery_read_entries=2)
            transport_of(ports).faults(BookieId("a")).is_unreachable = True
            dying = asyncio.get_running_loop().create_task(recover_ledger(ports, LEDGER))
            for _ in range(turns):
                await asyncio.sleep(0)
            was_done = dying.done()
            dying.cancel()
            await asyncio.wait([dying])
            before = await world.metadata()
            metadata = await world.recover()
            assert metadata.last_entry_id is not None
            assert metadata.last_entry_id >= 3
            await world.assert_durable(metadata)
            if before.is_closed:
                assert metadata == before
            else:
                assert before.fragments == ledger.metadata.fragments
            return was_done

    turns = 0
    while not run_virtual(scenario(turns)):
        turns += 1
    assert turns > 20


@pytest.mark.parametrize("seed", range(60))
def test_the_recovery_is_correct_with_every_fault_point(seed: int) -> None:
    async def scenario() -> None:
        rng = random.Random(seed)
        async with a_world("a b c d e f g h") as world:
            ledger = await world.create((0, "a b c d"), quorum=(3, 2), filled_to=5)
            for entry_id in (6, 7, 8):
                await world.put("abcd"[entry_id % 4], packet(entry_id, lac=5))
                await world.put("abcd"[(entry_id + 1) % 4], packet(entry_id, lac=5))
            with inject_faults(lambda name: name.startswith("recovery.") and rng.random() < 0.1):
                for _ in range(50):
                    try:
                        metadata = await world.recover()
                        break
                    except RecoveryNotPossibleError:
                        assert (await world.metadata()).fragments == ledger.metadata.fragments
                else:
                    pytest.fail("never recovered")
            assert ends(metadata) == closed_at(8)
            await world.assert_durable(metadata)
            assert metadata == await world.recover()

    run_virtual(scenario())


@in_virtual_time
async def test_an_answer_about_another_entry_proves_nothing() -> None:
    """Catalogue 56 (S18): an answer that is late or belongs to another request."""
    async with a_world("a b c") as world:
        await world.create((0, "a b c"), quorum=(3, 2), filled_to=3)

        async def other(asked: Asked, proceed: Proceed) -> Any:
            reply = await proceed()
            if not isinstance(asked, Read):
                return reply
            return ReadReply(reply.status, [replace(result, entry_id=result.entry_id + 1) for result in reply.results])

        world.transport.every = other
        with pytest.raises(RecoveryNotPossibleError):
            await world.recover()


@in_virtual_time
async def test_a_rolling_restart_does_not_stop_the_recovery() -> None:
    """Catalogue 43: the bookies are down one after another for a while."""
    async with a_world("a b c d e") as world:
        await world.create((0, "a b c"), quorum=(3, 2), filled_to=3)
        for entry_id in range(4, 40):
            await world.put("abc"[entry_id % 3], packet(entry_id, lac=3))
            await world.put("abc"[(entry_id + 1) % 3], packet(entry_id, lac=3))
        ports = world.client(recovery_read_entries=2)
        transport, calls = transport_of(ports), 0

        async def restarts(asked: Asked, proceed: Proceed) -> Any:
            nonlocal calls
            calls += 1
            for index, bookie in enumerate("abc"):
                transport.faults(BookieId(bookie)).is_unreachable = calls // 15 % 4 == index
            return await proceed()

        transport.every = restarts
        metadata = await world.recover(ports)
        assert ends(metadata) == closed_at(39)
        await world.assert_durable(metadata)


@in_virtual_time
async def test_a_member_whose_add_times_out_is_replaced() -> None:
    async with a_world("a b c d") as world:
        await world.create((0, "a b c"), quorum=(3, 2), filled_to=3)

        async def late(asked: Asked, proceed: Proceed) -> Any:
            if isinstance(asked, AddBatch):
                await world.clock.sleep(60)
                return AddReply(Status.OK)
            return await proceed()

        world.transport.hooks["b"] = late
        metadata = await world.recover()
        assert metadata.last_fragment.members == names("a d c")
        assert await world.holds("d") == [3]


@in_virtual_time
async def test_members_left_incomplete_by_the_dead_writer_are_marked() -> None:
    """Members that never received entries confirmed before the recovery cannot be found in another way."""
    async with a_world("a b c") as world:
        await world.create((0, "a b c"), quorum=(3, 2))
        for entry_id in range(4):
            await world.put("a", packet(entry_id))
            await world.put("b", packet(entry_id))
        await world.put("c", packet(3))
        assert ends(await world.recover()) == closed_at(3)
        assert await world.marked() == ("c",)


@in_virtual_time
async def test_incomplete_members_are_marked_before_and_after_the_close() -> None:
    """The recovery can die between the two marks, and a worker completes the task of an open ledger."""
    async with a_world("a b c") as world:
        await world.create((0, "a b c"), quorum=(3, 2), filled_to=6)
        world.hang("a")
        tasks, ledger_path = world.client().tasks, world.ledgers.path(LEDGER)
        completed = None

        async def complete_at_the_close(operation: str, path: str) -> Fault | None:
            nonlocal completed
            is_change = (operation, path) == ("set", ledger_path)
            if is_change and (await world.metadata()).state is LedgerState.IN_RECOVERY:
                world.store.fault_hook = None
                completed = await tasks.read(LEDGER)
                held = await tasks.locks.lock(LEDGER, "worker")
                assert held is not None
                assert await tasks.locks.complete(held)
            return None

        world.store.fault_hook = complete_at_the_close
        assert ends(await world.recover()) == closed_at(6)
        assert completed is not None
        assert completed.missing == await world.marked() == ("a",)


@in_virtual_time
async def test_a_spare_whose_disks_are_replaced_gets_the_entries_again_before_it_is_a_member() -> None:
    """New disks search the metadata only once for entries of the former disks; here, the search would find nothing."""
    async with a_world("a b c d") as world:
        histories = Incarnations(world.store, ROOT)
        await histories.record(BookieId("d"), "1", 0)
        await world.create((0, "a b c"), quorum=(3, 2), filled_to=3)
        world.stop_listening("c")
        lists = 0

        async def lose_disks(asked: Asked, proceed: Proceed) -> Any:
            nonlocal lists
            reply = await proceed()
            if isinstance(asked, ListEntries):
                lists += 1
                if lists == 1:
                    await histories.record(BookieId("d"), "2", 1)
                    await world.start_bookie("d")
            return reply

        world.transport.hooks["d"] = lose_disks
        metadata = await world.recover()
        assert metadata.last_fragment.members == names("a b d")
        assert lists == 2
        assert await world.holds("d") == [3]
