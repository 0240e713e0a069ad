"""A bookie that is registered and does not answer: it costs the process some waits, not each ledger (R42)."""

from __future__ import annotations

from bookie.model.ids import BookieId, LedgerId
from replicator.telemetry.events import Ending
from tests.worlds.repair import a_world, make_metadata, names
from tests.worlds.virtual_time import run_virtual

LEDGERS = 200
MEMBERS = ("a b s", "b s c", "s a b", "b c a")
"""Bookie b is lost, and bookie s is registered and does not answer. It is a source, and a candidate for copies."""


async def repair_all(*, has_circuits: bool) -> float:
    """Repair the ledgers with default settings; the seconds that it took."""
    async with a_world("a b c s t") as world:
        world.has_circuits = has_circuits
        packets = {}
        for number in range(LEDGERS):
            metadata = make_metadata((0, MEMBERS[number % len(MEMBERS)]), quorum=(3, 2), last=4)
            packets[number] = await world.ledger(number, metadata, 5)
            await world.tasks.mark(LedgerId(number), names("b"))
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


def test_a_bookie_that_does_not_answer_costs_the_process_and_not_each_ledger() -> None:
    before_s = run_virtual(repair_all(has_circuits=False))
    after_s = run_virtual(repair_all(has_circuits=True))
    print(before_s, after_s)
    assert after_s < 30 < 150 < before_s
