"""Decisions of operators about dead letters: accept the loss of entries, or drop the task.

The invariant: the task of a ledger is deleted only under the ledger's lock, at the version read under the lock, and in
the transaction of the decision's record (S1, S5). So a decision without its record does not exist, and a worker is
never disturbed. No metadata of a ledger is changed here, and no entry is deleted.

The record names the ids of the lost entries. If their positions store other entries, the task stays: a worker copies
these to other bookies, and replaces the lost ones (R148).

An entry can be accepted as lost if each of its bookies is unregistered and named by the task, or registered and denies
the entry. A bookie that no audit reported may be restarting, and only an explicit denial means absence (S6). Bookies
receive requests only if a worker found entries unreadable, if the task names registered ones, or if an earlier
acceptance includes their denials. In this case the ledger must be closed, because the end of a
fragment that may grow is unknown. While too many bookies are missing, nothing is accepted, because that is an outage.

Every step may be repeated. A crash before the transaction changes nothing. A crash after it leaves a parked record
without a task, which a worker removes when it next lists the tasks.

R rules are defined in docs/failure-model.md, S rules in docs/invariants.md.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from auditor.safety.lost_entries import JudgedLosses, final_fragments, judged_losses, lost_fragments
from bookie.client.held_entries import HeldEntriesReader
from bookie.client.ports import ClientPorts
from bookie.metadata.bookies.registration import MISSING_SHARE_MAX, Bookies
from bookie.metadata.ledgers.ledgers import NoSuchLedgerError, Versioned
from bookie.metadata.ledgers.serde import UnreadableMetadataError
from bookie.metadata.port import Check, MetadataStore, MultiFailedError
from bookie.metadata.tasks.decisions import (
    ACCEPTED_MAX,
    Decision,
    DecisionKind,
    Decisions,
    DecisionTooLargeError,
    LostFragment,
)
from bookie.metadata.tasks.format import UnreadableTaskError
from bookie.metadata.tasks.locks import HeldTask, Task
from bookie.metadata.tasks.parked import ParkedTask, ParkedTasks, ParkReason
from bookie.model.availability import EntryRuns
from bookie.model.errors import PermanentError
from bookie.model.holdings import fragment_entries
from bookie.model.ids import BookieId, LedgerId
from bookie.runtime.human import agreeing, counted
from bookie.wire.port import Status

_SHOWN_MAX: Final = 5
_LIST_TIMEOUT_S: Final = 15.0
_ATTEMPTS_MAX: Final = 4
_TASK_NOT_PARKED: Final = "its task is not parked, so no loss after this decision is accepted"


class DeadLetterOutcome(enum.StrEnum):
    """The outcome of the request for one ledger."""

    ACCEPTED = "accepted"
    """The loss is recorded, and the task is closed."""
    ACCEPTED_TASK_STAYS = "accepted_task_stays"
    """The loss is recorded. The task stays, because other entries lack copies, which a worker makes."""
    ALREADY_ACCEPTED = "already_accepted"
    DROPPED = "dropped"
    """The task and the parked record are removed."""
    ALREADY_DROPPED = "already_dropped"
    WITHDRAWN = "withdrawn"
    """The ledger had no task, and its accepted loss is withdrawn."""
    LOCKED = "locked"
    """Another process holds the lock of the ledger. Nothing was changed."""
    CHANGED = "changed"
    """The ledger or its task changed at the same time. Nothing was changed."""
    REFUSED = "refused"
    """Nothing was changed, for the reason in the detail."""
    UNKNOWN = "unknown"
    """The answer of ZooKeeper was lost. Repeating the command is safe, and shows what happened."""
    FAILED = "failed"
    """An error that a retry does not remove; the detail has it. A part of the change may have been made."""
    NOT_TRIED = "not_tried"
    """The command ended before this ledger. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class DeadLetterResult:
    """The outcome of one ledger."""

    ledger_id: LedgerId
    outcome: DeadLetterOutcome
    detail: str = ""
    lost: tuple[LostFragment, ...] = ()
    """The fragments with entries that are accepted as lost."""


class CannotAcceptError(PermanentError):
    """The loss cannot be accepted; the message has the reason and the next step."""


class DeadLetters:
    """Carries out operators' decisions about the dead letters of one cluster."""

    def __init__(
        self, ports: ClientPorts, store: MetadataStore, parked: ParkedTasks, decisions: Decisions, who: str
    ) -> None:
        """Store the arguments; ``who`` is written to records and locks."""
        self._ports = ports
        self._store = store
        self._parked = parked
        self._decisions = decisions
        self._who = who

    async def check_accept(self, ledger_id: LedgerId) -> DeadLetterResult:
        """Return what ``accept`` would do. Nothing is changed, and no lock is taken.

        Raises:
            StoreUnavailableError: no answer.
            NotAClusterError: the cluster was deleted.
        """
        found = await self._dead_letter(ledger_id)
        if isinstance(found, DeadLetterResult):
            return await self._as_accept_result(found)
        try:
            losses, _ = await self._acceptance(*found, "")
        except CannotAcceptError as error:
            return _refused(ledger_id, str(error))
        outcome = DeadLetterOutcome.ACCEPTED_TASK_STAYS if losses.other else DeadLetterOutcome.ACCEPTED
        return DeadLetterResult(ledger_id, outcome, _task_stays_text(losses), losses.lost)

    async def check_drop(self, ledger_id: LedgerId) -> DeadLetterResult:
        """Return what ``drop`` would do. Nothing is changed, and no lock is taken.

        Raises:
            StoreUnavailableError: no answer.
        """
        found = await self._dead_letter(ledger_id)
        if isinstance(found, DeadLetterResult):
            if found.outcome is DeadLetterOutcome.ALREADY_ACCEPTED:
                return DeadLetterResult(ledger_id, DeadLetterOutcome.WITHDRAWN)
            return found
        return DeadLetterResult(ledger_id, DeadLetterOutcome.DROPPED)

    async def accept(self, ledger_id: LedgerId, reason: str) -> DeadLetterResult:
        """Accept the entries without a live copy of a dead letter as lost, and close its task. Idempotent.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; accepting again is safe.
            NotAClusterError: the cluster was deleted.
        """

        async def decide(held: HeldTask, parked: ParkedTask) -> DeadLetterResult:
            try:
                losses, decision = await self._acceptance(held.task, parked, reason)
                await self._make_room(ledger_id)
            except CannotAcceptError as error:
                return _refused(ledger_id, str(error))
            try:
                write = await self._decisions.writing(decision)
            except DecisionTooLargeError as error:
                return _refused(ledger_id, str(error))
            check = Check(self._ports.ledgers.path(ledger_id), losses.ledger.version)
            if losses.other:
                try:
                    await self._store.multi([self._ports.tasks.locks.check(ledger_id), check, write])
                except MultiFailedError:
                    return _changed(ledger_id)
                await self._parked.unpark(ledger_id)  # a worker makes the other copies now
                return DeadLetterResult(
                    ledger_id, DeadLetterOutcome.ACCEPTED_TASK_STAYS, _task_stays_text(losses), losses.lost
                )
            if not await self._ports.tasks.locks.complete(held, [check, write]):
                return _changed(ledger_id)
            await self._parked.unpark(ledger_id)
            return DeadLetterResult(ledger_id, DeadLetterOutcome.ACCEPTED, lost=losses.lost)

        return await self._as_accept_result(await self._under_lock(ledger_id, decide))

    async def drop(self, ledger_id: LedgerId, reason: str) -> DeadLetterResult:
        """Remove the task and the parked record of a dead letter; an audit may mark the ledger again.

        If the ledger has no task and its loss was accepted, the acceptance is withdrawn. Idempotent.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; dropping again is safe.
        """

        async def decide(held: HeldTask, parked: ParkedTask) -> DeadLetterResult:
            decision = self._decision(ledger_id, DecisionKind.DROPPED, reason, parked)
            if not await self._ports.tasks.locks.complete(held, [await self._decisions.writing(decision)]):
                return _changed(ledger_id)
            await self._parked.unpark(ledger_id)
            await self._decisions.forget_old_drops()
            return DeadLetterResult(ledger_id, DeadLetterOutcome.DROPPED)

        result = await self._under_lock(ledger_id, decide)
        return (
            await self._withdraw(ledger_id, reason) if result.outcome is DeadLetterOutcome.ALREADY_ACCEPTED else result
        )

    async def _dead_letter(self, ledger_id: LedgerId) -> tuple[Task, ParkedTask] | DeadLetterResult:
        """Return the task and the record of a parked ledger, or the earlier decision; if neither exists, an error."""
        try:
            task = await self._ports.tasks.read(ledger_id)
        except UnreadableTaskError as error:
            return _refused(ledger_id, _unreadable_task_text(ledger_id, error))
        if task is None:
            return await self._accept_without_task(ledger_id)
        parked = await self._parked.get(ledger_id)
        return _refused(ledger_id, _not_parked_text(ledger_id)) if parked is None else (task, parked)

    async def _as_accept_result(self, result: DeadLetterResult) -> DeadLetterResult:
        """Return a result in terms of ``accept``.

        If the task was dropped earlier, there is nothing to accept. If the task is not parked because a worker makes
        the other copies after an acceptance, the loss was accepted before.
        """
        if result.outcome is DeadLetterOutcome.ALREADY_DROPPED:
            return _refused(result.ledger_id, _not_parked_text(result.ledger_id))
        if result.outcome is DeadLetterOutcome.REFUSED and result.detail == _not_parked_text(result.ledger_id):
            found = await self._accept_without_task(result.ledger_id)
            is_accepted = found.outcome is DeadLetterOutcome.ALREADY_ACCEPTED
            return replace(found, detail=f"{found.detail}; {_TASK_NOT_PARKED}") if is_accepted else result
        return result

    async def _accept_without_task(self, ledger_id: LedgerId) -> DeadLetterResult:
        decision = await self._decisions.get(ledger_id)
        if decision is None:
            return _refused(ledger_id, _not_parked_text(ledger_id))
        if decision.is_accepted:
            return DeadLetterResult(ledger_id, DeadLetterOutcome.ALREADY_ACCEPTED, _decided(decision), decision.lost)
        return DeadLetterResult(ledger_id, DeadLetterOutcome.ALREADY_DROPPED, _decided(decision))

    async def _under_lock(
        self, ledger_id: LedgerId, decide: Callable[[HeldTask, ParkedTask], Awaitable[DeadLetterResult]]
    ) -> DeadLetterResult:
        locks = self._ports.tasks.locks
        try:
            held = await locks.lock(ledger_id, self._who)
        except UnreadableTaskError as error:
            return _refused(ledger_id, _unreadable_task_text(ledger_id, error))
        if held is None:
            found = await self._dead_letter(ledger_id)
            return found if isinstance(found, DeadLetterResult) else _locked(ledger_id)
        try:
            parked = await self._parked.get(ledger_id)
            if parked is None:
                return _refused(ledger_id, _not_parked_text(ledger_id))
            return await decide(held, parked)
        finally:
            await locks.release(held.lock)

    async def _withdraw(self, ledger_id: LedgerId, reason: str) -> DeadLetterResult:
        locks = self._ports.tasks.locks
        held = await locks.lock_unmarked(ledger_id, self._who)
        if held is None:
            return _locked(ledger_id)
        try:
            write = await self._decisions.writing(self._decision(ledger_id, DecisionKind.DROPPED, reason, None))
            await self._store.multi([locks.check(ledger_id), write])
        except MultiFailedError:
            return _changed(ledger_id)
        finally:
            await locks.release(held)
        return DeadLetterResult(ledger_id, DeadLetterOutcome.WITHDRAWN)

    async def _acceptance(self, task: Task, parked: ParkedTask, reason: str) -> tuple[JudgedLosses, Decision]:
        """Return the losses that can be accepted, and their record: without entry ids if it has no room for them.

        Raises:
            CannotAcceptError: nothing can be accepted.
        """
        losses = await self._losses(task, parked)
        decision = self._decision(task.ledger_id, DecisionKind.LOSS_ACCEPTED, reason, parked, losses.lost)
        decision = replace(decision, ledger_ctime_ms=losses.ledger.metadata.ctime_ms)
        if not decision.has_room_for_ids or not all(part.entries for part in losses.lost):
            losses = losses.without_ids()
            decision = replace(decision, lost=losses.lost)
        return losses, decision

    async def _losses(self, task: Task, parked: ParkedTask) -> JudgedLosses:
        """Judge the ledger: first its metadata, then the bookies (R2).

        Raises:
            CannotAcceptError: nothing can be accepted.
        """
        ledger_id = task.ledger_id
        try:
            ledger = await self._ports.ledgers.read(ledger_id)
        except NoSuchLedgerError:
            raise CannotAcceptError(
                f"ledger {ledger_id} was deleted: remove its task with `bkheal dead-letters drop {ledger_id}`"
            ) from None
        except UnreadableMetadataError as error:
            raise CannotAcceptError(
                f"the metadata of ledger {ledger_id} cannot be read, so its losses are unknown ({error}): "
                f"`bkheal ledger show {ledger_id}` shows the error"
            ) from None
        bookies = await self._ports.registrations.list()
        known = await self._ports.registrations.known() | bookies.registered
        missing = len(known - bookies.registered)
        if missing > MISSING_SHARE_MAX * len(known):
            of, are = counted(len(known), "bookie"), agreeing(missing, "is", "are")
            raise CannotAcceptError(
                f"{missing} of {of} {are} missing, which is an outage and no loss: start the bookies, "
                "see `bkheal bookies`"
            )
        gone = frozenset(task.missing) - bookies.registered
        held = await self._held_entries_if_needed(ledger, task, parked, bookies)
        lost = lost_fragments(ledger.metadata, gone, held)
        if not lost:
            raise CannotAcceptError(_why_nothing_is_lost(ledger, task, bookies))
        return judged_losses(ledger, lost, frozenset(task.missing), bookies.registered, held)

    async def _held_entries_if_needed(
        self, ledger: Versioned, task: Task, parked: ParkedTask, bookies: Bookies
    ) -> dict[BookieId, EntryRuns]:
        """Return the entries of registered members, if these may lack entries; empty if they are assumed to have all.

        Raises:
            CannotAcceptError: a bookie must be asked and did not list its entries.
        """
        if parked.reason is ParkReason.UNREADABLE_ENTRIES or await self._has_denials(ledger.ledger_id):
            return await self._held_entries(ledger, bookies)
        if ledger.metadata.members() & bookies.registered & set(task.missing):
            with contextlib.suppress(CannotAcceptError):  # the losses of the other bookies can be accepted nevertheless
                return await self._held_entries(ledger, bookies)
        return {}

    async def _has_denials(self, ledger_id: LedgerId) -> bool:
        """Whether an accepted loss includes answers of registered bookies, which are asked again."""
        decision = await self._decisions.get(ledger_id)
        return decision is not None and decision.is_accepted and any(part.denials for part in decision.lost)

    async def _held_entries(self, ledger: Versioned, bookies: Bookies) -> dict[BookieId, EntryRuns]:
        """Return the entries of final fragments that the registered members have.

        Raises:
            CannotAcceptError: the answer of a bookie is not a complete list of its entries.
        """
        metadata, held = ledger.metadata, dict[BookieId, EntryRuns]()
        asking = HeldEntriesReader(self._ports.transport, self._ports.clock, _LIST_TIMEOUT_S, _ATTEMPTS_MAX)
        for bookie in sorted(metadata.members() & bookies.registered):
            wanted = (
                entry_id
                for index, last in final_fragments(metadata)
                for entry_id in fragment_entries(metadata, index, last, bookie)
            )
            reply = await asking.held(bookie, ledger.ledger_id, wanted)
            if reply.status not in (Status.OK, Status.NO_LEDGER, Status.NO_ENTRY):
                why = f" ({reply.detail})" if reply.detail else ""
                raise CannotAcceptError(
                    f"ledger {ledger.ledger_id}: bookie {bookie} is registered and did not list its entries: "
                    f"{reply.status.name}{why}, so it may hold them: correct this, or stop the bookie permanently"
                )
            held[bookie] = reply.entries
        return held

    async def _make_room(self, ledger_id: LedgerId) -> None:
        """Keep the number of accepted losses bounded, after removing those of deleted ledgers."""
        ids = {decision.ledger_id for decision in await self._decisions.accepted()}
        if len(ids | {ledger_id}) <= ACCEPTED_MAX:
            return
        ordered = sorted(ids)
        ledgers = await self._ports.ledgers.read_many_permitted(ordered)
        deleted = [each for each, ledger in zip(ordered, ledgers, strict=True) if ledger is None]
        for each in deleted:
            await self._decisions.forget(each)
        if len((ids | {ledger_id}) - set(deleted)) > ACCEPTED_MAX:
            raise CannotAcceptError(
                f"the losses of {ACCEPTED_MAX} ledgers are already accepted, which is the maximum: delete ledgers that "
                "are not needed, or withdraw some with `bkheal dead-letters drop`"
            )

    def _decision(
        self,
        ledger_id: LedgerId,
        verdict: DecisionKind,
        reason: str,
        parked: ParkedTask | None,
        lost: tuple[LostFragment, ...] = (),
    ) -> Decision:
        park_reason = None if parked is None else parked.reason
        return Decision(ledger_id, verdict, self._who, self._ports.clock.epoch_ms(), reason, park_reason, lost)


def _why_nothing_is_lost(ledger: Versioned, task: Task, bookies: Bookies) -> str:
    ledger_id, members = ledger.ledger_id, ledger.metadata.members()
    unnamed = sorted(members - bookies.registered - frozenset(task.missing))
    if unnamed:
        return (
            f"ledger {ledger_id}: no audit has reported {_some(unnamed)} as lost yet, so a copy may return: run "
            "`bkheal audit run` after the lost-bookie delay, and try again"
        )
    if not ledger.metadata.is_closed:
        return (
            f"ledger {ledger_id} is not closed, so its end is unknown and no loss can be accepted: close it with "
            f"`bkheal ledger recover {ledger_id}`"
        )
    registered = sorted(members & bookies.registered)
    return (
        f"ledger {ledger_id}: every entry has a bookie that is registered and may hold it ({_some(registered)}), so "
        f"it is not certain that anything is lost; see `bkheal dead-letters show {ledger_id}`"
    )


def _some(bookies: Sequence[BookieId]) -> str:
    more = f" and {len(bookies) - _SHOWN_MAX} more" if len(bookies) > _SHOWN_MAX else ""
    return ", ".join(bookies[:_SHOWN_MAX]) + more


def _task_stays_text(losses: JudgedLosses) -> str:
    if not losses.other:
        return ""
    other, lack = counted(losses.other, "position"), agreeing(losses.other, "lacks", "lack")
    return f"the task stays: {other} of the ledger {lack} copies of other entries, which can be made or may return"


def _decided(decision: Decision) -> str:
    return f"decided by {decision.by}: {decision.reason}" if decision.reason else f"decided by {decision.by}"


def _refused(ledger_id: LedgerId, detail: str) -> DeadLetterResult:
    return DeadLetterResult(ledger_id, DeadLetterOutcome.REFUSED, detail)


def _locked(ledger_id: LedgerId) -> DeadLetterResult:
    detail = f"another process holds the lock of ledger {ledger_id}: try again when its attempt has ended"
    return DeadLetterResult(ledger_id, DeadLetterOutcome.LOCKED, detail)


def _changed(ledger_id: LedgerId) -> DeadLetterResult:
    detail = f"ledger {ledger_id} or its task changed at the same time: check it again, and repeat the command"
    return DeadLetterResult(ledger_id, DeadLetterOutcome.CHANGED, detail)


def _not_parked_text(ledger_id: LedgerId) -> str:
    return f"ledger {ledger_id} is not a dead letter: `bkheal dead-letters list` lists them"


def _unreadable_task_text(ledger_id: LedgerId, error: UnreadableTaskError) -> str:
    return f"the task of ledger {ledger_id} was left as it is: {error}"
