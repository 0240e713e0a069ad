"""Sources without good copies are added to the task, or recorded for after the close."""

from __future__ import annotations

from bookie.metadata.layout import task_path
from replicator.repair.lacking_sources import LackingSources
from tests.unit.replicator.repair.turns import a_turn
from tests.worlds.ledgers import LEDGER, make_metadata, name_set
from tests.worlds.virtual_time import in_virtual_time

OPEN = make_metadata((0, "a b c"), quorum=(3, 2))
CLOSED = make_metadata((0, "a b c"), quorum=(3, 2), last=9)


@in_virtual_time
async def test_sources_of_a_closed_ledger_are_added_to_its_task_once() -> None:
    async with a_turn("a c", CLOSED, "b") as turn:
        ledger, lacking = await turn.ports.ledgers.read(LEDGER), LackingSources(turn.ports)
        await lacking.mark(ledger, name_set("a"))
        task = await turn.world.task(LEDGER)
        assert task is not None
        assert frozenset(task.missing) == name_set("a b")
        await lacking.mark(ledger, name_set("a"))
        assert await turn.world.task(LEDGER) == task, "its version is unchanged, so this turn may complete it"
        await lacking.mark(ledger, name_set("a c"))
        task = await turn.world.task(LEDGER)
        assert task is not None
        assert frozenset(task.missing) == name_set("a b c")
        assert not await turn.ports.damage_notes.all()


@in_virtual_time
async def test_sources_of_an_unclosed_ledger_are_recorded_and_its_task_is_unchanged() -> None:
    async with a_turn("a c", OPEN, "b") as turn:
        ledger, lacking = await turn.ports.ledgers.read(LEDGER), LackingSources(turn.ports)
        before = await turn.world.task(LEDGER)
        await lacking.mark(ledger, name_set("a"))
        assert await turn.world.task(LEDGER) == before
        assert [note.members for note in await turn.ports.damage_notes.all()] == [name_set("a")]


@in_virtual_time
async def test_a_task_that_cannot_be_decoded_does_not_stop_the_copy() -> None:
    async with a_turn("a c", CLOSED, "b") as turn:
        ledger, lacking = await turn.ports.ledgers.read(LEDGER), LackingSources(turn.ports)
        await turn.world.store.set(task_path(turn.world.cluster.root, LEDGER), b"\xff", -1)
        await lacking.mark(ledger, name_set("a"))
