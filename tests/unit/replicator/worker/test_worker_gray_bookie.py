"""A registered bookie that does not answer costs a process a few waits, and not one per ledger (R42)."""

from __future__ import annotations

from bookie.model.ids import BookieId, LedgerId
from replicator.telemetry.events import Ending
from tests.worlds.ledgers import make_metadata, names
from tests.worlds.repair import Running, a_world
from tests.worlds.virtual_time import in_virtual_time, run_virtual, until

LEDGERS = 200
MEMBERS = ("a b s", "b s c", "s a b", "b c a")
"""Bookie b is lost. Bookie s is registered but does not answer; it is a source and a candidate for copies."""


async def repair_all(*, has_circuits: bool) -> float:
    """Repair the ledgers with default settings, and return the seconds that it took."""
    async with a_world("a b c s t") as world:
        world.has_circuits = has_circuits
        packets = {}
        for number in range(LEDGERS):
            metadata = make_metadata((0, MEMBERS[number % len(MEMBERS)]), quorum=(3, 2), last=4)
            packets[number] = await world.ledger(number, metadata, 5)
            await world.tasks.marking.mark(LedgerId(number), names("b"))
        await world.kill("b")
        world.bookies.transport.faults(BookieId("s")).is_request_lost = True
        started_s = world.clock.monotonic_s()
        recorder = await world.heal()
        took_s = world.clock.monotonic_s() - started_s
        assert recorder.endings() == [Ending.REPAIRED] * LEDGERS
        for number in range(LEDGERS):
            assert "s" in MEMBERS[number % 4] or "s" not in (await world.metadata(number)).members()
            await world.assert_whole(number, packets[number])
        return took_s


def test_an_unresponsive_bookie_costs_the_process_one_timeout_and_not_one_per_ledger() -> None:
    before_s = run_virtual(repair_all(has_circuits=False))
    after_s = run_virtual(repair_all(has_circuits=True))
    assert after_s < 30 < 60 < before_s


@in_virtual_time
async def test_a_bookie_that_responds_again_is_used_again() -> None:
    async with a_world("a b s") as world:
        running = world.worker(once=False)
        faults = world.bookies.transport.faults(BookieId("s"))
        faults.is_request_lost = True
        packets = await world.ledger(1, make_metadata((0, "a b"), quorum=(2, 2), last=4), 5)
        await world.kill("b")
        await world.tasks.marking.mark(LedgerId(1), names("b"))
        async with world.running(running):
            await until(lambda: _has(running, Ending.FAILED))  # bookie s is the only possible target
            assert running.worker.load().unreachable_bookies == 1
            faults.is_request_lost = False
            await until(world.is_clean)
            assert running.worker.load().unreachable_bookies == 0
        await world.assert_whole(1, packets, "s")


@in_virtual_time
async def test_a_bookie_that_is_no_longer_registered_is_not_counted() -> None:
    async with a_world("a b s") as world:
        running = world.worker(once=False)
        world.bookies.transport.faults(BookieId("s")).is_request_lost = True
        await world.ledger(1, make_metadata((0, "a b"), quorum=(2, 2), last=4), 5)
        await world.kill("b")
        await world.tasks.marking.mark(LedgerId(1), names("b"))
        async with world.running(running):
            await until(lambda: _has(running, Ending.FAILED))
            assert running.worker.load().unreachable_bookies == 1
            await world.kill("s")
            await until(lambda: _counts_none(running))


async def _has(running: Running, ending: Ending) -> bool:
    return ending in running.recorder.endings()


async def _counts_none(running: Running) -> bool:
    return running.worker.load().unreachable_bookies == 0
