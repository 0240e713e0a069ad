"""Missing members that no task names: a restart must not cost a copy, and a real loss is not forgotten."""

from __future__ import annotations

import random

import pytest

from bookie.metadata.bookies.cookies import Cookie, CookieStore
from bookie.metadata.bookies.first_seen_down import FirstSeenDown
from bookie.metadata.bookies.maintenance import MaintenanceWindow, MaintenanceWindows
from bookie.model.ids import BookieId, LedgerId
from bookie.model.metadata import LedgerState
from replicator.knowledge.absence import SETTLE_S
from replicator.telemetry.events import Ending
from tests.worlds.cluster import ROOT
from tests.worlds.ledgers import LEDGER, make_metadata, names
from tests.worlds.repair import RepairWorld, a_world
from tests.worlds.virtual_time import in_virtual_time, until

DELAY_S = 600


async def with_cookies(world: RepairWorld, bookies: str, delay_s: int = DELAY_S) -> FirstSeenDown:
    cookies = CookieStore(world.store, world.cluster)
    for name in bookies.split():
        await cookies.create(Cookie(BookieId(name), ("/journal",), ("/ledgers",), world.cluster.instance_id))
    if delay_s:
        await world.tasks.switches.set_lost_bookie_delay_s(delay_s)
    return FirstSeenDown(world.store, ROOT)


@pytest.mark.parametrize("delay_s", [0, DELAY_S])
@in_virtual_time
async def test_a_bookie_that_restarts_during_a_repair_causes_no_copies(delay_s: int) -> None:
    async with a_world("a b c d e f g") as world:
        await with_cookies(world, "a b c d e f g", delay_s)
        packets = await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=99), 100)
        await world.lose("c")
        await world.kill("b")
        recorder = await world.heal()
        (result,) = recorder.results
        assert (result.ending, result.entries) == (Ending.REPAIRED, 100)
        members = (await world.metadata(LEDGER)).last_fragment.members
        assert members[:2] == names("a b")
        await world.register("b")
        await world.assert_whole(LEDGER, packets)
        assert await world.is_clean()


@in_virtual_time
async def test_a_bookie_that_restarts_causes_no_recovery_of_an_unclosed_ledger() -> None:
    async with a_world("a b c d e") as world:
        await with_cookies(world, "a b c d e")
        await world.ledger(LEDGER, make_metadata((0, "d b"), (50, "a b"), quorum=(2, 2), last=None), 100)
        await world.lose("d")
        await world.kill("b")
        running = world.worker(once=False)
        async with world.running(running):
            await world.clock.sleep(2 * SETTLE_S)
        assert (await world.metadata(LEDGER)).state is LedgerState.OPEN


@in_virtual_time
async def test_a_member_is_replaced_once_its_delay_is_over() -> None:
    async with a_world("a b c d e f g") as world:
        down = await with_cookies(world, "a b c d e f g")
        await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=99), 100)
        await world.kill("b", "c")
        await down.reconcile({BookieId("b")}, world.clock.epoch_ms() - DELAY_S * 1000, registered=set())
        await world.tasks.marking.mark(LEDGER, names("c"))
        world.bookies["a"].read_status = None
        running = world.worker(once=False)
        async with world.running(running):
            await world.clock.sleep(SETTLE_S + 1)  # until then, a worker draws no conclusion from an absence
            await world.tasks.marking.mark(LEDGER, names("z"))
            await until(lambda: _is_without(world, "b", "c"))


@in_virtual_time
async def test_within_the_delay_only_the_marked_bookies_of_a_critical_ledger_are_replaced() -> None:
    """R70: the auditor names the bookies; the delay of the cluster applies to all other members."""
    async with a_world("a b c d e f g") as world:
        down = await with_cookies(world, "a b c d e f g")
        packets = await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=99), 100)
        await world.kill("b", "c")
        await down.reconcile({BookieId("b"), BookieId("c")}, world.clock.epoch_ms(), registered=set())
        await world.tasks.marking.mark(LEDGER, names("b"))
        recorder = await world.heal()
        assert [(result.ending, result.entries) for result in recorder.results] == [(Ending.REPAIRED, 100)]
        members = (await world.metadata(LEDGER)).last_fragment.members
        assert (members[0], members[2]) == tuple(names("a c"))
        assert members[1] != BookieId("b")
        await world.register("c")
        await world.assert_whole(LEDGER, packets)
        assert await world.is_clean()


@pytest.mark.parametrize("is_named", [False, True])
@in_virtual_time
async def test_a_maintenance_window_protects_the_position_of_a_member_unless_its_task_names_it(is_named: bool) -> None:
    """R71."""
    async with a_world("a b c d e f g") as world:
        down = await with_cookies(world, "a b c d e f g")
        now_ms = world.clock.epoch_ms()
        window = MaintenanceWindow("rack:/r1", (BookieId("b"), BookieId("f")), "ops", now_ms, now_ms + 3_600_000)
        await MaintenanceWindows(world.store, ROOT).start(window)
        await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=99), 100)
        await world.kill("b", "c")
        await down.reconcile({BookieId("b")}, now_ms - DELAY_S * 1000, registered=set())
        running = world.worker(once=False)
        async with world.running(running):
            await world.clock.sleep(SETTLE_S + 1)
            await world.tasks.marking.mark(LEDGER, names("b c" if is_named else "c"))
            await until(lambda: _is_done(world))
        members = (await world.metadata(LEDGER)).last_fragment.members
        assert (members[1] == BookieId("b")) is not is_named
        assert members[2] != BookieId("c")


@in_virtual_time
async def test_a_member_held_back_by_auditors_is_not_replaced_even_after_its_delay() -> None:
    """R72: workers use the record, and do not need the topology."""
    async with a_world("a b c d e f g") as world:
        down = await with_cookies(world, "a b c d e f g")
        since_ms = world.clock.epoch_ms() - DELAY_S * 1000
        noted = await down.reconcile({BookieId("b")}, since_ms, registered=set())
        await down.record_holds(noted, {BookieId("b"): since_ms + 2 * DELAY_S * 1000})
        await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=99), 100)
        await world.kill("b", "c")
        running = world.worker(once=False)
        async with world.running(running):
            await world.clock.sleep(SETTLE_S + 1)
            await world.tasks.marking.mark(LEDGER, names("c"))
            await until(lambda: _is_done(world))
            assert (await world.metadata(LEDGER)).last_fragment.members[1] == BookieId("b")
            await world.clock.sleep(DELAY_S)
            await world.tasks.marking.mark(LEDGER, names("c"))
            await until(lambda: _is_done(world))
            assert await _is_without(world, "b")


@pytest.mark.parametrize(
    ("cookies", "killed", "waited_s", "is_replaced"),
    [
        ("a c d e f g", "b c", SETTLE_S + 1, True),
        ("a c d e f g", "b c", 0, False),
        ("a c d e f g", "b c e f g", SETTLE_S + 1, False),
        ("a c d e g", "b c", SETTLE_S + 1, False),
        ("", "b c", SETTLE_S + 1, False),
    ],
    ids=["normal", "just after the start", "mass loss", "a cookie is lost", "all cookies are lost"],
)
@in_virtual_time
async def test_a_bookie_without_a_cookie_is_replaced_unless_cookies_may_be_lost(
    cookies: str, killed: str, waited_s: float, is_replaced: bool
) -> None:
    async with a_world("a b c d e f g h") as world:
        await with_cookies(world, f"{cookies} h" if cookies else "")
        packets = await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=99), 100)
        await world.kill(*killed.split())
        running = world.worker(once=False)
        async with world.running(running):
            await world.clock.sleep(waited_s)
            await world.tasks.marking.mark(LEDGER, names("c"))
            await until(lambda: _is_done(world))
            assert await _is_without(world, "c")
            assert await _is_without(world, "b") is is_replaced
        await world.register("b")
        await world.assert_whole(LEDGER, packets)


@in_virtual_time
async def test_no_bookie_counts_as_lost_while_most_bookies_are_missing() -> None:
    async with a_world("a b c d e f g") as world:
        down = await with_cookies(world, "a b c d e f g")
        await world.ledger(LEDGER, make_metadata((0, "a b c"), quorum=(3, 2), last=99), 100)
        await world.kill("b", "c", "e", "f")
        lost = {BookieId(name) for name in "bcef"}
        await down.reconcile(lost, world.clock.epoch_ms() - DELAY_S * 1000, registered=set())
        await world.tasks.marking.mark(LEDGER, names("c"))
        running = world.worker(once=False)
        async with world.running(running):
            await world.clock.sleep(SETTLE_S + 1)
            await world.tasks.marking.mark(LEDGER, names("z"))
            await until(lambda: _is_done(world))
        assert (await world.metadata(LEDGER)).last_fragment.members[:2] == names("a b")


@in_virtual_time
async def test_a_rolling_restart_during_many_repairs_copies_only_lost_entries() -> None:
    async with a_world("a b c d e f g") as world:
        await with_cookies(world, "a b c d e f g")
        rng = random.Random(0)
        for ledger_id in range(1, 31):
            members = " ".join(rng.sample("abdefg", 2))
            await world.ledger(ledger_id, make_metadata((0, f"{members} c"), quorum=(3, 2), last=9), 10)
        await world.kill("c")
        for ledger_id in range(1, 31):
            await world.tasks.marking.mark(LedgerId(ledger_id), names("c"))
        running = world.worker(once=False, bytes_per_second=1000, ledgers_in_flight=2)
        async with world.running(running):
            for name in "abdefg":
                await world.kill(name)
                await world.clock.sleep(3)
                await world.register(name)
            await until(lambda: _is_done(world))
        copied = sum(result.entries for result in running.recorder.results if result.ending is Ending.REPAIRED)
        assert copied <= 30 * 10
        for ledger_id in range(1, 31):
            assert BookieId("c") not in (await world.metadata(ledger_id)).members()


async def _is_without(world: RepairWorld, *bookies: str) -> bool:
    return (await world.metadata(LEDGER)).members().isdisjoint(map(BookieId, bookies))


async def _is_done(world: RepairWorld) -> bool:
    return await world.is_clean()
