"""Planted defects of audit and repair: marks, tasks, copies, reservations, installation."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

from bookie.metadata.layout import task_path
from bookie.metadata.ledgers.ledgers import LedgerStore
from bookie.metadata.port import Delete, MultiFailedError, NoNodeError, SetData, WriteOutcomeUnknownError
from bookie.metadata.tasks.locks import HeldTask, HeldTaskState, TaskLocks
from bookie.metadata.tasks.reservations import LedgerReservations
from bookie.model.availability import EntryRuns, finished
from bookie.model.digest import digest_for
from bookie.model.ids import EntryId
from bookie.model.metadata import LedgerMetadata
from bookie.model.packet import pack, unpack
from bookie.model.schedule import Stripe
from bookie.wire.port import AddBatch
from replicator.copying import target
from replicator.copying.target import Target
from replicator.knowledge import holdings
from replicator.knowledge.holdings import HoldingsReader
from replicator.plan import installable
from replicator.plan import planner as plan
from replicator.plan.installable import CopiedStep
from replicator.plan.steps import CopyPosition
from replicator.repair import execution, install
from replicator.repair import ledger_repair as repair
from replicator.repair.install import Installer
from replicator.repair.lease import Lease
from replicator.repair.reservation_holder import ReservationHolder
from replicator.telemetry.events import Ending
from tests.simulation import services
from tests.simulation.planting import Registry, swap
from tests.worlds.ledgers import with_member

REPAIR_DEFECTS = Registry()
plants = REPAIR_DEFECTS.add


@plants("brake-ignored", "#2302, #2471, R35", "marks are published however many bookies are missing")
def _(stack: ExitStack) -> None:
    swap(stack, services, "held_because", lambda _: lambda *arguments: None)


@plants("task-deleted-blindly", "R13", "a task is deleted without checking its version, the lock or the ledger")
def _(stack: ExitStack) -> None:
    async def blindly(self: TaskLocks, held: HeldTask, checks: Any, seen: Any) -> bool:
        try:
            await self._store.delete(task_path(self._root, held.task.ledger_id))
        except NoNodeError:
            return True
        return True

    swap(stack, TaskLocks, "_delete_task", lambda _: blindly)
    swap(stack, repair.LedgerRepair, "_completing", lambda _: lambda *arguments: None)


@plants(
    "copies-packed-again", "R26", "a worker builds copied entries again, with the ledger's end as last add confirmed"
)
def _(stack: ExitStack) -> None:
    def make(init: Any) -> Any:
        def with_digest(
            self: Target, transport: Any, clock: Any, throttle: Any, bookie: Any, ledger: Any, *rest: Any
        ) -> None:
            init(self, transport, clock, throttle, bookie, ledger, *rest)
            self._digest = digest_for(ledger.metadata.digest_type, ledger.metadata.password)  # type: ignore[attr-defined]

        return with_digest

    def make_add(add: Any) -> Any:
        async def repacked(self: Any, packets: Any) -> Any:
            again = []
            for packet in packets:
                entry = unpack(self._digest, packet, self._ledger_id, None)
                again.append(
                    pack(self._digest, entry.ledger_id, entry.entry_id, entry.entry_id, entry.length, entry.payload)
                )
            return await add(self, again)

        return repacked

    swap(stack, Target, "__init__", make)
    swap(stack, Target, "_add", make_add)


@plants(
    "open-fragment-copied",
    "R3, #3917",
    "a worker copies the last fragment of an open ledger up to the last add confirmed",
)
def _(stack: ExitStack) -> None:
    def make(last_of: Any) -> Any:
        def without_check(metadata: Any, index: int, *, is_tail_written: bool = False) -> Any:
            last = last_of(metadata, index, is_tail_written=is_tail_written)
            return EntryId(metadata.fragments[index].first_entry_id - 1) if last is None else last

        return without_check

    swap(stack, LedgerMetadata, "final_last_entry_id", make)


@plants(
    "boundary-one-short", "#3917", "a worker ends a fragment one entry early, at the last add confirmed of the bookies"
)
def _(stack: ExitStack) -> None:
    def make(last_of: Any) -> Any:
        def short(metadata: Any, index: int, *, is_tail_written: bool = False) -> Any:
            last = last_of(metadata, index, is_tail_written=is_tail_written)
            is_before_another = index + 1 < len(metadata.fragments)
            return last - 1 if last is not None and is_before_another else last

        return short

    swap(stack, LedgerMetadata, "final_last_entry_id", make)


@plants("first-and-last-probe", "R24", "a bookie with the first and the last entry of a fragment counts as complete")
def _(stack: ExitStack) -> None:
    def without_check(stripe: Stripe, position: int, listed: Any, first: int, last: int) -> bool:
        ends = (stripe.first_entry(position, first, last), stripe.last_entry(position, first, last))
        return any(end is not None and end not in listed for end in ends)

    swap(stack, holdings, "_lacks", lambda _: without_check)


@plants("member-twice", "R10", "a bookie that is already a member takes another position of the fragment")
def _(stack: ExitStack) -> None:
    def without_check(self: Any) -> Any:
        return sorted(self.bookies.writable - self.knowledge.failed_targets)

    def choose(*arguments: Any) -> Any:
        return lambda key, members, candidates: candidates[(key.position + key.first_entry_id) % len(candidates)]

    def with_steps(metadata: Any, steps: Any) -> Any:
        for step in steps:
            metadata = with_member(metadata, step.fragment_index, step.position, step.target)
        return metadata

    swap(stack, plan._FragmentPlan, "_candidates", lambda _: without_check)
    swap(stack, repair, "target_chooser", lambda _: choose)
    for module in (install, installable):
        swap(stack, module, "with_steps", lambda _: with_steps)


@plants("copy-without-recovery-flag", "#3783, #4163", "copies are sent as ordinary adds, which fenced bookies refuse")
def _(stack: ExitStack) -> None:
    def plain(*arguments: Any, **named: Any) -> AddBatch:
        return replace(AddBatch(*arguments, **named), is_recovery=False)

    swap(stack, target, "AddBatch", lambda _: plain)


@plants("copies-not-waited-for", "R29, S11", "the metadata names a target before it has acknowledged its copies")
def _(stack: ExitStack) -> None:
    async def at_once(self: Any, copying: Any, steps: Any) -> Any:
        disks = copying.targets.incarnation
        return True, [CopiedStep(step, incarnation=disks(step.target), entries=0, bytes=0) for step in steps]

    async def whole(self: Installer, ledger: Any, copy: Any) -> None:
        return None

    swap(stack, execution.Execution, "_copy", lambda _: at_once)
    swap(stack, Installer, "_lacking", lambda _: whole)


@plants("all-entries-denied", "R23", "a fragment whose entries cannot be read counts as repaired")
def _(stack: ExitStack) -> None:
    def make(conclude: Any) -> Any:
        async def done(self: Any, plan: Any, view: Any) -> Any:
            return await (self._complete(Ending.NOTHING_MISSING) if plan.blocked else conclude(self, plan, view))

        return done

    swap(stack, repair.LedgerRepair, "_conclude", make)


@plants(
    "repair-without-lock",
    "#4668",
    "copies are made as by Apache's admin tool: no lock, no reservation, no check at the end",
)
def _(stack: ExitStack) -> None:
    def make(lock: Any) -> Any:
        async def given_back(self: TaskLocks, ledger_id: Any, owner: str, other_nodes: Any = ()) -> HeldTask | None:
            held: HeldTask | None = await lock(self, ledger_id, owner, other_nodes)
            if held is not None:
                await self._release(held.lock)
            return held

        return given_back

    async def reread(self: TaskLocks, held: HeldTask, other_nodes: Any = ()) -> HeldTaskState:
        return HeldTaskState(is_ours=True, is_same=True, nodes=tuple(await self._store.get_many(other_nodes)))

    async def without_lock(self: TaskLocks, held: HeldTask, checks: Any, seen: Any) -> bool:
        with suppress(MultiFailedError):
            await self._store.multi([*checks, Delete(task_path(self._root, held.task.ledger_id), held.task.version)])
        return True

    async def reserve(self: ReservationHolder, ledger: Any, steps: Any) -> None:
        self.current = LedgerReservations(ledger.ledger_id, "none", (), 0, "/")

    async def nothing(*arguments: Any) -> None:
        return None

    swap(stack, TaskLocks, "lock", make)
    swap(stack, TaskLocks, "reread", lambda _: reread)
    swap(stack, TaskLocks, "_delete_task", lambda _: without_lock)
    swap(stack, repair.LedgerRepair, "_completing", lambda _: lambda *arguments: None)
    swap(stack, Lease, "ensure_ours", lambda _: nothing)
    swap(stack, ReservationHolder, "reserve", lambda _: reserve)
    swap(stack, ReservationHolder, "release", lambda _: nothing)
    swap(stack, HoldingsReader, "pin", lambda _: nothing)
    swap(stack, Installer, "_lacking", lambda _: nothing)


@plants("unknown-outcome-is-done", "R32", "a change of a ledger's metadata without an answer counts as done")
def _(stack: ExitStack) -> None:
    def make(set_node: Any) -> Any:
        async def done(self: LedgerStore, ledger_id: Any, change: SetData, checks: Any) -> int:
            try:
                version: int = await set_node(self, ledger_id, change, checks)
            except WriteOutcomeUnknownError:
                return change.version + 1
            return version

        return done

    swap(stack, LedgerStore, "_set", make)


@plants("others-left-out", "R148, I17", "a copy after an accepted loss also leaves out the entry after each lost entry")
def _(stack: ExitStack) -> None:
    def and_next(lost: EntryRuns, step: CopyPosition) -> EntryRuns:
        return EntryRuns.of(sorted({e + more for e in lost for more in (0, 1) if step.first <= e + more <= step.last}))

    def make_held(entries_already_held: Any) -> Any:
        async def with_next(self: Any, copying: Any, step: Any, *rest: Any) -> Any:
            held = await entries_already_held(self, copying, step, *rest)
            accepted = self._may_leave_out(copying, step)
            others = and_next(accepted, step).without(accepted)
            return finished(EntryRuns.union_with_pauses(held, others))

        return with_next

    def make_missing(missing_on_target: Any) -> Any:
        async def without_next(self: Any, ledger: Any, step: Any, left_out: EntryRuns) -> Any:
            return await missing_on_target(self, ledger, step, and_next(left_out, step))

        return without_next

    swap(stack, execution.Execution, "_entries_already_held", make_held)
    swap(stack, HoldingsReader, "missing_on_target", make_missing)
