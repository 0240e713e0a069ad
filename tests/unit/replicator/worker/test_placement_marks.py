"""A task without bookies requests moves of copies: a worker leaves it to the workers that move copies."""

from __future__ import annotations

import pytest

from bookie.metadata.port import NoNodeError
from bookie.model.ids import LedgerId
from replicator.knowledge import absence
from replicator.telemetry.events import Ending, QueueState
from tests.unit.replicator.worker.test_worker_absences import with_cookies
from tests.worlds.ledgers import LEDGER, make_metadata, names
from tests.worlds.repair import a_world
from tests.worlds.virtual_time import in_virtual_time

OTHER = LedgerId(8)
WHOLE = make_metadata((0, "a b c"), quorum=(3, 2), last=9)


@in_virtual_time
async def test_a_placement_mark_stays_and_is_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with a_world("a b c d t") as world:
        await world.ledger(LEDGER, WHOLE, 10)
        packets = await world.ledger(OTHER, make_metadata((0, "a b d"), quorum=(3, 2), last=9), 10)
        await world.tasks.marking.mark(LEDGER, ())
        await world.tasks.marking.mark(OTHER, names("d"))
        await world.kill("d")
        before = await world.task(LEDGER)
        recorder = await world.heal()
        assert [(each.ledger_id, each.ending) for each in recorder.results] == [(OTHER, Ending.REPAIRED)]
        assert await world.task(LEDGER) == before
        assert recorder.queue_state == QueueState(left=1)
        assert sum("placement marks are left" in record.getMessage() for record in caplog.records) == 1
        assert await world.tasks.locks.locked() == frozenset()
        await world.assert_whole(OTHER, packets)


@in_virtual_time
async def test_a_lost_bookie_of_a_ledger_with_a_placement_mark_is_replaced_and_the_mark_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(absence, "SETTLE_S", 0.0)
    async with a_world("a b c t") as world:
        await with_cookies(world, "a b t", 0)
        packets = await world.ledger(LEDGER, WHOLE, 10)
        await world.tasks.marking.mark(LEDGER, ())
        await world.kill("c")
        recorder = await world.heal()
        (result,) = recorder.results
        assert (result.ending, result.fragments) == (Ending.LEFT, 1)
        await world.assert_whole(LEDGER, packets, "t")
        task = await world.task(LEDGER)
        assert task is not None
        assert task.missing == ()


@in_virtual_time
async def test_the_mark_of_a_deleted_ledger_is_removed() -> None:
    async with a_world("a b c") as world:
        await world.tasks.marking.mark(LEDGER, ())
        with pytest.raises(NoNodeError):
            await world.store.get(world.ledgers.path(LEDGER))
        assert (await world.heal()).endings() == [Ending.LEDGER_DELETED]
        assert await world.is_clean()
