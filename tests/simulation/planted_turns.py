"""Planted defects around copies: order, retries, locks, effort, memory, switches, sessions; and of disk space."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

from bookie.metadata.bookies.registration import Registrations
from bookie.metadata.layout import task_path
from bookie.metadata.port import Check, NoNodeError
from bookie.metadata.tasks.locks import HeldTaskState
from bookie.metadata.tasks.switches import RecoverySwitches
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.server.upkeep.collector import Collector, CollectorReport
from bookie.storage import checkpoint
from bookie.storage.disks.memory import MemoryIndex
from bookie.wire.port import ListReply, Status
from replicator.copying.pace import CopyPace
from replicator.copying.sources import EntrySource
from replicator.knowledge import frontier
from replicator.knowledge.absence import Absences
from replicator.knowledge.doubts import DoubtingTransport, Trust
from replicator.knowledge.evidence import BookieAnswer
from replicator.plan import planner
from replicator.queue import ordering, task_queue
from replicator.queue.task_queue import TaskQueue
from replicator.repair import install
from replicator.repair.lease import Lease
from replicator.repair.ledger_repair import LedgerRepair
from replicator.repair.reservation_holder import ReservationHolder
from replicator.repair.unclosed_ledger import UnclosedLedgerRepair
from replicator.repair.unfinished_turn import UnfinishedTurn
from replicator.telemetry.events import Ending, TaskResult
from replicator.worker import Worker
from tests.simulation import services
from tests.simulation.planting import Registry, swap
from tests.simulation.truth import ROOT

TURN_DEFECTS = Registry()
plants = TURN_DEFECTS.add


@plants(
    "loss-not-recorded", "S6", "a worker forgets after its turn which members lost entries, and believes them later"
)
def _(stack: ExitStack) -> None:
    async def in_memory(self: UnclosedLedgerRepair, members: Any) -> None:
        self._doubted.update(members)

    async def of_this_turn(self: UnclosedLedgerRepair, ledger: Any, bookies: Any) -> Trust:
        members = ledger.metadata.members()
        registered = await self._ports.registrations.numbers(members)
        judged = {bookie: number for bookie, number in registered.items() if bookie not in self._doubted}
        return Trust(members, frozenset(self._doubted), judged)

    swap(stack, UnclosedLedgerRepair, "doubt", lambda _: in_memory)
    swap(stack, UnclosedLedgerRepair, "_trust", lambda _: of_this_turn)


@plants(
    "denial-after-judgement-counts", "R91", "a recovery believes a bookie that registered after the members were judged"
)
def _(stack: ExitStack) -> None:
    async def always(self: DoubtingTransport, bookie: BookieId) -> bool:
        return bookie not in self._trust.doubted

    swap(stack, DoubtingTransport, "_is_trusted", lambda _: always)


@plants("new-cookie-ignored", "R92", "a recovery believes a bookie on new disks if no entry can show what it lost")
def _(stack: ExitStack) -> None:
    async def none(self: UnclosedLedgerRepair, members: Any) -> frozenset[BookieId]:
        return frozenset()

    swap(stack, UnclosedLedgerRepair, "_joined_later", lambda _: none)


@plants("named-last-is-end", "R137", "the last entry that a bookie names counts as the end of an open ledger")
def _(stack: ExitStack) -> None:
    async def nothing_after(self: Any, ledger: Any, members: Any, named: EntryId) -> tuple[EntryId, list[BookieAnswer]]:
        return named, []

    swap(stack, frontier.Frontier, "_after_named", lambda _: nothing_after)


@plants("absence-is-denial", "S6", "a member that is not registered counts as having no later entries")
def _(stack: ExitStack) -> None:
    def answer(bookie: BookieId, reply: ListReply | None) -> BookieAnswer:
        return BookieAnswer(bookie, Status.OK) if reply is None else BookieAnswer(bookie, reply.status, reply.detail)

    swap(stack, frontier, "_answer", lambda _: answer)


@plants("index-not-reopened", "RocksDB", "after a full disk the index is not opened again, and all writes fail")
def _(stack: ExitStack) -> None:
    async def nothing(self: MemoryIndex) -> None:
        return None

    swap(stack, MemoryIndex, "reopen", lambda _: nothing)


@plants("superseded-not-counted", "#2166", "an entry that is stored again leaves bytes that compaction does not find")
def _(stack: ExitStack) -> None:
    async def none(index: Any, puts: Any) -> dict[int, int]:
        return {}

    swap(stack, checkpoint, "superseded", lambda _: none)


@plants("own-lock-kept", "S14", "a collector treats its own lock as that of another process, and does not delete it")
def _(stack: ExitStack) -> None:
    async def discard(self: Collector) -> None:
        for ledger_id in sorted(self._unsettled):
            held = await self._tasks.locks.lock_unmarked(ledger_id, self._bookie)
            if held is not None:
                await self._release(held)
            self._unsettled.pop(ledger_id, None)

    swap(stack, Collector, "_release_remaining_locks", lambda _: discard)


@plants("lost-disks-not-urgent", "R40", "copies of a registered bookie count as left although a task names it")
def _(stack: ExitStack) -> None:
    swap(stack, task_queue, "rank", lambda rank: lambda ledger, named, bookies: rank(ledger, (), bookies))


@plants(
    "delay-not-respected", "R39", "a worker replaces every member that is not registered, even one that is restarting"
)
def _(stack: ExitStack) -> None:
    async def all_of_them(self: Absences, bookies: Any, unregistered: Any) -> frozenset[BookieId]:
        return frozenset(unregistered)

    swap(stack, Absences, "lost", lambda _: all_of_them)


@plants("copy-progress-ignored", "R44", "the recorded progress of a copy is ignored: after a fault it starts at zero")
def _(stack: ExitStack) -> None:
    swap(stack, ReservationHolder, "end_entry_id", lambda _: lambda self, ledger, step, incarnation: EntryId(0))


@plants("failure-demotes", "R40", "a ledger that failed once comes after every ledger that never failed")
def _(stack: ExitStack) -> None:
    failed: set[LedgerId] = set()

    def make_judge(judge: Any) -> Any:
        def noting(self: TaskQueue, task: Any, *rest: Any) -> Any:
            (failed.add if self._memory.failures(task.ledger_id) else failed.discard)(task.ledger_id)
            return judge(self, task, *rest)

        return noting

    def make_ranked(ranked: Any) -> Any:
        def demoted(candidates: Any, rng: Any) -> Any:
            found = [((each.ledger_id in failed, *key), each) for key, each in ranked(candidates, rng)]
            return sorted(found, key=lambda pair: pair[0])

        return demoted

    swap(stack, TaskQueue, "_judge", make_judge)
    swap(stack, ordering, "_ranked", make_ranked)


@plants(
    "critical-not-preferred",
    "limits on copying",
    "copies of ledgers with one copy left wait for the limits like all others",
)
def _(stack: ExitStack) -> None:
    def make(pass_limits: Any) -> Any:
        async def waiting(
            self: CopyPace, throttle: Any, critical: Any, direction: Any, size_bytes: int, rank: int
        ) -> None:
            await pass_limits(self, throttle, critical, direction, size_bytes, rank + 1)

        return waiting

    swap(stack, CopyPace, "_pass_limits", make)


@plants("memory-by-mean-size", "R43", "copies reserve memory for entries of mean size, whatever size the entries have")
def _(stack: ExitStack) -> None:
    swap(stack, EntrySource, "answer_bytes_max", lambda _: lambda self, entry_count: entry_count * 64)


@plants("list-before-each-task", "COST", "a worker lists all tasks again before it takes the next one")
def _(stack: ExitStack) -> None:
    def make(take: Any) -> Any:
        def once(self: TaskQueue, *passed_over: Any) -> Any:
            turn = take(self, *passed_over)
            self._order.clear()
            self.mark_stale()
            return turn

        return once

    def make_first(first: Any) -> Any:
        def renewing(self: TaskQueue, *passed_over: Any) -> Any:
            candidate = first(self, *passed_over)
            if candidate is None:
                self.mark_stale()
            return candidate

        return renewing

    swap(stack, TaskQueue, "take", make)
    swap(stack, TaskQueue, "first", make_first)


@plants("never-parked", "I19", "a task that cannot succeed fails for ever, and is never parked")
def _(stack: ExitStack) -> None:
    async def again(self: UnfinishedTurn, reason: Any, detail: str, bookies: Any) -> TaskResult:
        return self._found.result(self._task, Ending.FAILED, detail=detail)

    swap(stack, UnfinishedTurn, "fail_or_park", lambda _: again)


@plants("disable-ignored", "S7", "workers continue although repair was switched off")
def _(stack: ExitStack) -> None:
    async def never(self: RecoverySwitches) -> bool:
        return False

    swap(stack, RecoverySwitches, "is_disabled", lambda _: never)


@plants("read-only-target", "S8", "copies go to bookies that are read-only")
def _(stack: ExitStack) -> None:
    def spare(self: Any) -> frozenset[BookieId]:
        used = {*self.metadata.fragments[self.index].members, *self.taken.values()}
        return frozenset(self.bookies.staying - used - self.knowledge.failed_targets)

    def make(with_draining: Any) -> Any:
        async def all_writable(*arguments: Any) -> Any:
            bookies, checks = await with_draining(*arguments)
            return replace(bookies, writable=bookies.staying, read_only=bookies.draining), checks

        return all_writable

    swap(stack, planner._FragmentPlan, "_spare", lambda _: spare)
    swap(stack, install, "with_draining", make)
    swap(stack, Registrations, "check_writable", lambda _: lambda self, bookie: Check(ROOT))


@plants(
    "collected-at-first-check", "S13", "entries are deleted as soon as one ZooKeeper server does not have their ledger"
)
def _(stack: ExitStack) -> None:
    async def at_once(self: Collector, ledger_ids: Sequence[LedgerId], report: CollectorReport) -> None:
        for ledger_id in ledger_ids:
            await self._delete(ledger_id, self._storage.mark(ledger_id), report)

    swap(stack, Collector, "_collect_deleted", lambda _: at_once)


@plants("turn-outlives-session", "S14", "a worker continues its turn in a new session")
def _(stack: ExitStack) -> None:
    async def nothing(self: Lease) -> None:
        return None

    swap(stack, Lease, "is_session_over", lambda _: property(lambda self: False))

    async def reread(self: Lease, other_nodes: Sequence[str]) -> HeldTaskState:
        return await self._ports.tasks.locks.reread(self.held, other_nodes)

    swap(stack, Lease, "ensure_ours", lambda _: nothing)
    swap(stack, Lease, "reread", lambda _: reread)
    swap(stack, Worker, "_abandon", lambda _: lambda self: None)


@plants("deletion-is-failure", "S15", "the repair of a ledger that was deleted fails")
def _(stack: ExitStack) -> None:
    def make(complete: Any) -> Any:
        async def fail(self: LedgerRepair, ending: Ending, checks: Any = ()) -> TaskResult:
            if ending is Ending.LEDGER_DELETED:
                return self._ended(Ending.FAILED, detail="no such ledger")
            result: TaskResult = await complete(self, ending, checks)
            return result

        return fail

    swap(stack, LedgerRepair, "_complete", make)


@plants("partial-scan-completes", "S20", "an audit deletes the tasks of ledgers in which it found nothing missing")
def _(stack: ExitStack) -> None:
    def make(publisher: Any) -> Any:
        class Complete:
            def __init__(self, tasks: Any) -> None:
                self._tasks = tasks

            async def mark(self, batch: Any) -> Any:
                found = {ledger_id for ledger_id, _ in batch}
                for task in await self._tasks.list():
                    if task.ledger_id not in found:
                        with suppress(NoNodeError):
                            await self._tasks._store.delete(task_path(self._tasks._root, task.ledger_id))
                return await publisher(self._tasks).mark(batch)

        return Complete

    swap(stack, services, "Publisher", make)
