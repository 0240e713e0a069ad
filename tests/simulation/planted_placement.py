"""Planted defects of moves for better placement, and of copies that bookies make from each other."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from bookie.model.ids import EntryId
from bookie.server import copying
from bookie.wire.port import CopyReply, EntryResult, Status
from replicator.copying.pull import Pull, Pulled
from replicator.plan.installable import CopiedStep
from replicator.plan.steps import Cause
from replicator.queue import ordering
from replicator.queue.repayment import Repayment
from replicator.repair import execution, install
from replicator.repair.install import Installer
from tests.simulation.planting import Registry, swap

PLACEMENT_DEFECTS = Registry()
plants = PLACEMENT_DEFECTS.add


@plants(
    "pull-ends-early", "S11", "a bookie acknowledges a whole copy although its source has returned only a part of it"
)
def _(stack: ExitStack) -> None:
    def make(stored: Any) -> Any:
        async def whole(copy: Any, *rest: Any) -> CopyReply:
            reply: CopyReply = await stored(copy, *rest)
            return replace(reply, covered=len(copy.entry_ids)) if reply.status is Status.OK else reply

        return whole

    swap(stack, copying, "_stored", make)


@plants("pull-counts-unstored", "S11", "a bookie acknowledges a copy whose last entry it has not stored")
def _(stack: ExitStack) -> None:
    def make(sorted_out: Any) -> Any:
        def shorter(*arguments: Any) -> Any:
            found = sorted_out(*arguments)
            return replace(found, entry_ids=found.entry_ids[:-1], packets=found.packets[:-1])

        return shorter

    swap(stack, copying, "_verified_entries", make)


@plants("pull-unverified", "S10", "a bookie stores what its source returns without verifying it")
def _(stack: ExitStack) -> None:
    def believed(digest: Any, ledger_id: Any, entry_id: EntryId, result: EntryResult) -> EntryResult:
        return result

    swap(stack, copying, "verified", lambda _: believed)


@plants("pull-skips-entry", "R44", "a pull that was cut short continues one entry too late")
def _(stack: ExitStack) -> None:
    def make(bring: Any) -> Any:
        async def behind(self: Pull, *arguments: Any) -> Pulled:
            pulled: Pulled = await bring(self, *arguments)
            del pulled.later[:1]
            return pulled

        return behind

    swap(stack, Pull, "pull_entries", make)


@plants("moved-before-copied", "S11", "a move replaces the old copy in the metadata before the new one is complete")
def _(stack: ExitStack) -> None:
    def make_copy(copied: Any) -> Any:
        async def uncopied(self: Any, copying: Any, steps: Any) -> Any:
            if any(step.cause is not Cause.MISPLACED for step in steps):
                return await copied(self, copying, steps)
            return True, [CopiedStep(step, incarnation=copying.targets.incarnation(step.target)) for step in steps]

        return uncopied

    def make(lacking: Any) -> Any:
        async def trusting(self: Installer, ledger: Any, copy: Any) -> Any:
            return None if copy.step.cause is Cause.MISPLACED else await lacking(self, ledger, copy)

        return trusting

    swap(stack, execution.Execution, "_copy", make_copy)
    swap(stack, Installer, "_lacking", make)


@plants("moves-first", "R40", "ledgers whose copies only need to be moved come before ledgers that lack copies")
def _(stack: ExitStack) -> None:
    def make(key: Any) -> Any:
        def first(candidate: Any, rng: Any) -> Any:
            return candidate.rank != ordering.MISPLACED, *key(candidate, rng)[1:]

        return first

    swap(stack, ordering, "_key", make)


@plants("debt-not-recorded", "R57", "a repair puts a copy in a bad place and records no debt")
def _(stack: ExitStack) -> None:
    async def nothing(ports: Any, ledger: Any, steps: Sequence[Any]) -> None:
        return None

    swap(stack, install, "note_debts", lambda _: nothing)


@plants("debt-not-searched", "R57", "a ledger with a debt is not marked when a better place appears")
def _(stack: ExitStack) -> None:
    async def nothing(self: Repayment) -> int:
        return 0

    swap(stack, Repayment, "mark_movable", lambda _: nothing)
