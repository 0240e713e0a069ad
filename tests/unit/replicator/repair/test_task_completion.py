"""The task of a finished turn is deleted with its other records, unless the verdict is outdated."""

from __future__ import annotations

from dataclasses import replace

from bookie.metadata.bookies.registration import Bookies
from bookie.metadata.port import Check
from bookie.model.ids import BookieId, EntryId
from replicator.copying.copier import Copier
from replicator.copying.pace import CopyPace
from replicator.copying.throttle import ByteBudget
from replicator.knowledge.absence import Absences
from replicator.knowledge.evidence import CorruptCopy
from replicator.knowledge.holdings import Shortfall
from replicator.knowledge.returns import Returns
from replicator.plan.steps import SwapMember
from replicator.queue.grace import GracePeriods
from replicator.queue.parking import Circumstances
from replicator.queue.task_queue import Turn
from replicator.repair.accepted_loss import AcceptedLoss
from replicator.repair.conditions import Conditions
from replicator.repair.context import RepairContext
from replicator.repair.inspection import View
from replicator.repair.task_completion import TaskCompletion
from replicator.repair.unclosed_ledger import UnclosedLedgerRepair
from replicator.telemetry.events import Ending
from tests.unit.replicator.repair.turns import LockedTurn, a_turn
from tests.worlds.ledgers import LEDGER, make_metadata, name_set
from tests.worlds.repair import Recorder
from tests.worlds.virtual_time import in_virtual_time

CLOSED = make_metadata((0, "a b c"), quorum=(3, 2), last=9)
REGISTERED = Bookies(name_set("a b c"), frozenset())
OPEN = make_metadata((0, "a b c"), quorum=(3, 2))


class Completing:
    """The completion of one turn, with damage that the process knows."""

    def __init__(self, turn: LockedTurn) -> None:
        ports, clock = turn.ports, turn.world.clock
        copier = Copier(ports.transport, clock, CopyPace(clock), ByteBudget(1))
        grace_periods = GracePeriods(clock, 0.0)
        self.turn = turn
        self.context = RepairContext(ports, copier, Recorder(), grace_periods, Absences(ports), Returns(clock))
        self.unclosed = UnclosedLedgerRepair(ports, turn.lease, grace_periods, turn.holdings, turn.found)
        accepted = AcceptedLoss(ports, turn.lease)
        queued = Turn(ledger_id=LEDGER, circumstances=Circumstances(0, 0, REGISTERED))
        self.completion = TaskCompletion(self.context, turn.lease, queued, turn.reservation, self.unclosed, accepted)

    async def view(self, awaited: frozenset[BookieId] = frozenset()) -> View:
        """Return a view of the ledger as it is now, with the damage of b noted."""
        ledger = await self.turn.ports.ledgers.read(LEDGER)
        self.context.damage.note(ledger, [CorruptCopy(BookieId("b"), EntryId(1), "")])
        check = Check(self.turn.ports.ledgers.path(LEDGER), ledger.version)
        return View(ledger, replace(REGISTERED, awaited=awaited), Conditions((check,)), Shortfall())


@in_virtual_time
async def test_the_task_is_deleted_and_the_ledger_forgotten() -> None:
    async with a_turn("a b c", CLOSED, "b") as turn:
        completing = Completing(turn)
        ending = await completing.completion.complete(Ending.NOTHING_MISSING, await completing.view())
        assert ending is Ending.NOTHING_MISSING
        assert await turn.world.is_clean()
        assert not completing.context.damage.of(LEDGER)


@in_virtual_time
async def test_an_outdated_verdict_keeps_the_task_and_what_is_known() -> None:
    async with a_turn("a b c", CLOSED, "b") as turn:
        completing = Completing(turn)
        view = await completing.view()
        changed = view.ledger.metadata.with_members(
            {0: (*view.ledger.metadata.fragments[0].members[:2], BookieId("d"))}
        )
        await turn.ports.ledgers.write(LEDGER, changed, view.ledger.version)
        assert await completing.completion.complete(Ending.NOTHING_MISSING, view) is Ending.MARKED_AGAIN
        assert await turn.world.task(LEDGER) is not None
        assert completing.context.damage.of(LEDGER)


@in_virtual_time
async def test_doubts_are_kept_while_a_member_of_an_unclosed_ledger_is_awaited() -> None:
    for awaited, kept in ((frozenset[BookieId](), frozenset[BookieId]()), (name_set("c"), name_set("b"))):
        async with a_turn("a b c", OPEN, "b") as turn:
            completing = Completing(turn)
            await completing.unclosed.doubt(name_set("b"))
            await completing.completion.complete(Ending.NOTHING_MISSING, await completing.view(awaited))
            assert await turn.world.task(LEDGER) is None
            assert await turn.ports.doubts.get(LEDGER) == kept


@in_virtual_time
async def test_the_reservation_is_removed_with_the_task_of_a_deleted_ledger() -> None:
    async with a_turn("a b c", CLOSED, "b") as turn:
        completing = Completing(turn)
        step = SwapMember(fragment_index=0, position=1, old=BookieId("b"), target=BookieId("t"))
        await turn.reservation.reserve(await turn.ports.ledgers.read(LEDGER), [(step, "1")])
        assert await turn.world.reserved()
        await turn.ports.ledgers.delete(LEDGER)
        await completing.completion.complete(Ending.LEDGER_DELETED, None)
        assert not await turn.world.reserved()
        assert await turn.world.task(LEDGER) is None
