"""The number of requests to the metadata store per repair. Most ledgers are small, and the store is shared."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from bookie.metadata.layout import lock_path
from bookie.metadata.store.memory import Fault
from bookie.model.ids import BookieId, LedgerId
from replicator.telemetry.events import Ending
from replicator.worker import RunEnd
from tests.worlds.cluster import ROOT
from tests.worlds.ledgers import LEDGER, make_metadata, names, with_member
from tests.worlds.repair import RepairWorld, Running, a_world
from tests.worlds.virtual_time import in_virtual_time

LEDGERS = 200
LISTINGS = 160
"""The requests of the listings at the start and at the end, which all ledgers share."""


def counted(running: Running) -> list[str]:
    """Return a list of the worker's requests from now on."""
    requests: list[str] = []

    async def count(operation: str, path: str) -> Fault | None:
        requests.append(f"{operation} {path}")
        return None

    running.store.fault_hook = count
    return requests


@pytest.mark.parametrize(("entries", "cost"), [(10, 6), (0, 5)])
@in_virtual_time
async def test_a_small_ledger_costs_six_requests_and_an_empty_one_five(entries: int, cost: int) -> None:
    """Lock, read, reserve, synchronize, check, and one transaction. An empty ledger needs no reservation."""
    async with a_world("a b c t") as world:
        for ledger_id in range(1, LEDGERS + 1):
            await world.ledger(ledger_id, make_metadata((0, "a b c"), quorum=(3, 2), last=entries - 1), entries)
            await world.tasks.marking.mark(LedgerId(ledger_id), names("c"))
        await world.kill("c")
        running = world.worker()
        requests = counted(running)
        await running.worker.run()
        assert await world.is_clean()
        assert len(requests) <= LISTINGS + LEDGERS * cost
        assert (await world.store.children(f"{ROOT}/underreplication/ledgers")).names == ()


async def cost_of_one_more_bookie(world: RepairWorld) -> int:
    await world.tasks.marking.mark(LEDGER, names("z"))
    running = world.worker()
    requests = counted(running)
    assert await running.worker.run() is RunEnd.SETTLED
    assert running.recorder.endings() == [Ending.NOTHING_MISSING]
    return sum("urL" in request for request in requests)


@in_virtual_time
async def test_a_ledger_that_lacks_nothing_costs_its_lock_and_one_transaction() -> None:
    async with a_world("a b c") as world:
        await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=9), 10)
        # After the listing of the task: create the lock, read, synchronize, check, and one transaction.
        assert await cost_of_one_more_bookie(world) == 6


async def endings_with(world: RepairWorld, first_path: str, act: Callable[[], Awaitable[None]]) -> list[Ending]:
    """Repair, run ``act`` before the first transaction that starts with ``first_path``, and return the endings."""
    running = world.worker()
    done: list[bool] = []

    async def late(operation: str, path: str) -> Fault | None:
        if (operation, path) == ("multi", first_path) and not done:
            done.append(True)
            await act()
        return None

    running.store.fault_hook = late
    assert await running.worker.run() is RunEnd.SETTLED
    assert done
    return running.recorder.endings()


@in_virtual_time
async def test_a_task_marked_again_right_before_the_single_transaction_stays() -> None:
    """R13: the new copies are installed nevertheless, and the worker checks the ledger again."""
    async with a_world("a b c t") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=9), 10)
        await world.lose("c")

        async def mark() -> None:
            await world.tasks.marking.mark(LEDGER, names("z"))

        endings = await endings_with(world, world.ledgers.path(LEDGER), mark)
        assert endings == [Ending.MARKED_AGAIN, Ending.NOTHING_MISSING]
        assert world.version(LEDGER) == 1
        await world.assert_whole(LEDGER, packets, "t")
        assert await world.is_clean()


@in_virtual_time
async def test_a_target_that_disappears_right_before_the_single_transaction_is_not_installed() -> None:
    """No later check would find it, and an auditor that saw it disappear earlier has not marked the ledger."""
    async with a_world("a b c t") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=9), 10)
        await world.lose("c")

        async def leave() -> None:
            await world.kill("t")
            await world.add_bookies("u")

        endings = await endings_with(world, world.ledgers.path(LEDGER), leave)
        assert endings == [Ending.REPAIRED]
        assert (await world.metadata(LEDGER)).last_fragment.members == names("a b u")
        await world.assert_whole(LEDGER, packets, "u")
        assert await world.is_clean()


@in_virtual_time
async def test_a_lost_reply_to_the_single_transaction_is_harmless() -> None:
    async with a_world("a b c t") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=9), 10)
        await world.lose("c")
        running = world.worker()
        lost: list[str] = []

        async def lose(operation: str, path: str) -> Fault | None:
            if operation == "multi" and path == world.ledgers.path(LEDGER) and not lost:
                lost.append(path)
                return Fault.LOSE_ANSWER
            return None

        running.store.fault_hook = lose
        assert await running.worker.run() is RunEnd.SETTLED
        assert lost
        assert running.recorder.endings() == [Ending.REPAIRED]
        await world.assert_whole(LEDGER, packets, "t")
        assert await world.is_clean()


@in_virtual_time
async def test_a_lock_deleted_right_before_the_single_transaction_prevents_it() -> None:
    async with a_world("a b c t") as world:
        packets = await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=9), 10)
        await world.lose("c")

        async def unlock() -> None:
            await world.store.delete(lock_path(ROOT, LEDGER))

        endings = await endings_with(world, world.ledgers.path(LEDGER), unlock)
        assert endings == [Ending.STOPPED, Ending.REPAIRED]
        await world.assert_whole(LEDGER, packets, "t")
        assert await world.is_clean()


@in_virtual_time
async def test_a_member_that_registered_after_the_last_list_of_bookies_is_not_replaced() -> None:
    """R2: a list that is used for many turns must not be used for a ledger with a bookie that is not in it."""
    async with a_world("a b c t") as world:
        for ledger_id in (1, 2):
            await world.ledger(ledger_id, make_metadata((0, "a b c"), quorum=(3, 2), last=9), 10)
            await world.tasks.marking.mark(LedgerId(ledger_id), names("c"))
        await world.kill("c")
        running = world.worker(ledgers_in_flight=1)
        joined: list[bool] = []

        async def join(operation: str, path: str) -> Fault | None:
            if operation == "multi" and path in (lock_path(ROOT, 1), lock_path(ROOT, 2)):  # the worker takes a lock
                if joined:  # the second ledger: its writer has named a bookie that registered a moment ago
                    ledger_id = LedgerId(int(path[-1]))
                    await world.bookies.start(["n"])
                    packets = await world.bookies.nodes[BookieId("b")].storage.list_entries(ledger_id)
                    read = await world.bookies.nodes[BookieId("b")].storage.read(ledger_id, list(packets.entries))
                    await world.bookies.put("n", ledger_id, [each.packet for each in read.results])
                    before = await world.ledgers.read(ledger_id)
                    await world.register("n")
                    await world.ledgers.write(ledger_id, with_member(before.metadata, 0, 1, BookieId("n")), 0)
                joined.append(True)
            return None

        running.store.fault_hook = join
        assert await running.worker.run() is RunEnd.SETTLED
        members = {(await world.metadata(ledger_id)).last_fragment.members for ledger_id in (1, 2)}
        assert members == {names("a b t"), names("a n t")}
