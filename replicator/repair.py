"""The repair of one ledger under its lock: look, plan, copy, install, and look again until nothing is left to do.

Each round starts from metadata read under the lock and from the bookies listed after it (R2). What a round finds out
(targets that refuse, entries that nobody serves, bookies that came back incomplete) goes into the next plan. The task
is deleted by a round that finds nothing missing (I18), never on the word of the round that repaired it.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from bookie.client.placement import choose_replacement
from bookie.metadata.ledgers import MetadataConflictError, NoSuchLedgerError, Versioned
from bookie.metadata.own_state import ParkedTask, ParkReason
from bookie.metadata.registration import Bookies
from bookie.metadata.serde import UnreadableMetadataError
from bookie.model.errors import OutcomeUnknownError, TransientError
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.runtime.retry import Backoff
from bookie.wire.port import Status
from replicator.copying import Copier
from replicator.events import Ending, EventSink, TaskResult
from replicator.evidence import SHOWN_MAX, Answer, describe
from replicator.holdings import Holdings, Shortfall
from replicator.install import Copied, Installer
from replicator.lease import Lease, LeaseLostError
from replicator.plan import Blocked, Choose, Knowledge, Plan, PositionKey, needs_tail_evidence, plan_repair
from replicator.ports import RepairPorts
from replicator.steps import CopyPosition, Step, SwapMember

_log = logging.getLogger(__name__)

ROUNDS_MAX: Final = 12
"""Each round repairs or learns something, so more of them mean that the ledger changes faster than it is repaired."""
STORE_PAUSES: Final = Backoff(attempts=5)
"""Before the store is asked again in the same turn."""
INSTALL_BYTES: Final = 64 << 20
"""Copied bytes after which what is ready is installed, so that an interruption costs no more than these."""

_WORST_FIRST: Final = (
    ParkReason.UNREADABLE_METADATA,
    ParkReason.UNREADABLE_ENTRIES,
    ParkReason.NO_LIVE_COPY,
    ParkReason.NO_CANDIDATE_BOOKIE,
    ParkReason.NEEDS_RECOVERY,
)


def target_chooser(ledger_id: LedgerId) -> Choose:
    """Targets that depend on ledger and position alone, so that whoever repeats a repair repeats it onto the same one.

    Copies of an attempt that failed are then used by the next one instead of piling up elsewhere (R38, #2166).
    """

    def choose(key: PositionKey, members: Sequence[BookieId], candidates: Sequence[BookieId]) -> BookieId | None:
        rng = random.Random(f"{ledger_id}/{key.first_entry_id}/{key.position}")  # spreads load only
        return choose_replacement(members, candidates, (), rng)

    return choose


class LedgerRepair:
    """One turn of one task. Made for the turn, used once."""

    def __init__(self, ports: RepairPorts, copier: Copier, lease: Lease, events: EventSink) -> None:
        self._ports = ports
        self._copier = copier
        self._lease = lease
        self._events = events
        self._task = lease.held.task
        self._choose = target_chooser(self._task.ledger_id)
        self._holdings = Holdings(ports.transport, ports.clock)
        self._installer = Installer(ports, self._holdings, lease)
        self._failed_targets: dict[BookieId, Answer] = {}
        self._unreadable: dict[PositionKey, str] = {}
        self._copied: dict[tuple[PositionKey, BookieId, EntryId], Copied] = {}
        self._silence: list[str] = []
        self._fragments: set[int] = set()
        self._entries = 0
        self._bytes = 0

    async def run(self) -> TaskResult:
        """Work on the task until its turn is over. What the store and the bookies do is in the result."""
        pauses = STORE_PAUSES.delays(self._ports.rng)
        for _ in range(ROUNDS_MAX):
            try:
                result = await self._round()
            except LeaseLostError as error:
                return self._ended(Ending.STOPPED, detail=str(error))
            except (TransientError, OutcomeUnknownError) as error:
                pause_s = next(pauses, None)
                if pause_s is None:
                    return self._ended(Ending.FAILED, detail=str(error))
                await self._ports.clock.sleep(pause_s)  # the next round looks afresh and keeps what was copied
                continue
            if result is not None:
                return result
        return self._ended(Ending.FAILED, detail=f"not settled after {ROUNDS_MAX} rounds; the ledger keeps changing")

    async def _round(self) -> TaskResult | None:
        if not await self._lease.may_continue():
            return self._stopped()
        try:
            ledger = await self._ports.ledgers.read(self._task.ledger_id)
            bookies = await self._ports.registrations.list()
            shortfall = await self._holdings.shortfall(ledger, self._task.missing, bookies)
            plan = plan_repair(ledger, bookies, self._choose, await self._knowledge(ledger, bookies, shortfall))
            if plan.steps:
                return await self._execute(plan, shortfall)
        except NoSuchLedgerError:
            return await self._complete(Ending.LEDGER_DELETED)
        except UnreadableMetadataError as error:
            bookies = await self._ports.registrations.list()
            return await self._park(ParkReason.UNREADABLE_METADATA, str(error), bookies)
        except MetadataConflictError:
            return None
        if plan.blocked:
            return await self._give_up(plan.blocked, bookies)
        if shortfall.silent:
            who = ", ".join(map(str, shortfall.silent))
            return self._ended(Ending.FAILED, detail=f"registered, but does not say what it holds: {who}")
        return await self._complete(Ending.REPAIRED if self._fragments else Ending.NOTHING_MISSING)

    async def _knowledge(self, ledger: Versioned, bookies: Bookies, shortfall: Shortfall) -> Knowledge:
        is_tail_written = needs_tail_evidence(ledger.metadata, bookies) and await self._holdings.is_tail_written(
            ledger, bookies
        )
        unreadable = tuple(self._unreadable.items())
        return Knowledge(is_tail_written, shortfall.positions, unreadable, frozenset(self._failed_targets))

    async def _execute(self, plan: Plan, shortfall: Shortfall) -> TaskResult | None:
        """Copy and install every step. None: look again."""
        ledger = plan.ledger
        ready: list[Copied] = [Copied(step) for step in plan.steps if isinstance(step, SwapMember)]
        self._silence.clear()
        for step in plan.steps:
            if isinstance(step, SwapMember) or step.target in self._failed_targets:
                continue
            # S16: a reservation for (fragment, position, target) belongs here, before the first byte, and into the
            # install's write. There is no collector yet that could take a copy away.
            copied = await self._copy(ledger, step, shortfall)
            if copied is not None:
                ready.append(copied)
            elif not await self._lease.may_continue():
                return self._stopped()
            if sum(copy.bytes for copy in ready) >= INSTALL_BYTES:
                ledger = await self._install(ledger, ready)
                ready = []
        if ready:
            await self._install(ledger, ready)
        if self._silence:
            return self._ended(Ending.FAILED, detail="; ".join(self._silence))
        return None

    async def _copy(self, ledger: Versioned, step: CopyPosition, shortfall: Shortfall) -> Copied | None:
        """Copy one position; None if it did not work, with the reason noted for the next plan."""
        key = _key(ledger, step)
        incarnation = await self._installer.incarnation(step.target)
        before = self._copied.get((key, step.target, step.last))
        if before is not None and before.incarnation == incarnation:
            return replace(before, step=step)  # copied by an earlier round whose write met a conflict
        if incarnation is None:
            self._failed_targets[step.target] = Answer(step.target, Status.UNRESOLVED, "not registered any more")
            return None
        held = shortfall.held_by(step.target)
        outcome = await self._copier.copy(ledger, step, self._lease.may_continue, held)
        for corrupt in outcome.corrupt:
            self._events.copy_corrupt(ledger.ledger_id, corrupt)
        if outcome.is_complete:
            copied = Copied(step, incarnation, outcome.entries, outcome.bytes)
            self._copied[key, step.target, step.last] = copied
            return copied
        if outcome.target_failure is not None:
            self._failed_targets[step.target] = outcome.target_failure
        elif outcome.unreadable_count:
            where = f"fragment {step.fragment_index} position {step.position}"
            evidence = f"{where}: {describe(outcome.unreadable, outcome.unreadable_count)}"
            if outcome.is_hopeless:
                self._unreadable[key] = evidence
            else:
                self._silence.append(evidence)
        return None

    async def _install(self, ledger: Versioned, ready: Sequence[Copied]) -> Versioned:
        installed = await self._installer.install(ledger, ready)
        for refusal in installed.refusals:
            self._failed_targets[refusal.bookie] = refusal
        for copy in installed.done:
            self._fragments.add(ledger.metadata.fragments[copy.step.fragment_index].first_entry_id)
            self._entries += copy.entries
            self._bytes += copy.bytes
        return installed.ledger

    async def _give_up(self, blocked: Sequence[Blocked], bookies: Bookies) -> TaskResult:
        reason = min((block.reason for block in blocked), key=_WORST_FIRST.index)
        detail = "; ".join(block.detail for block in blocked[:SHOWN_MAX])
        if len(blocked) > SHOWN_MAX:
            detail += f"; and {len(blocked) - SHOWN_MAX} more positions"
        if self._failed_targets and any(block.reason is ParkReason.NO_CANDIDATE_BOOKIE for block in blocked):
            refusals = ", ".join(f"{answer} ({answer.detail})" for answer in self._failed_targets.values())
            return self._ended(Ending.FAILED, detail=f"{detail}; refusals: {refusals}")
        return await self._park(reason, detail, bookies)

    async def _park(self, reason: ParkReason, detail: str, bookies: Bookies) -> TaskResult:
        before = await self._ports.parked.get(self._task.ledger_id)
        is_same = before is not None and before.reason is reason
        since_ms = before.since_ms if before is not None and is_same else self._ports.clock.epoch_ms()
        record = ParkedTask(self._task.ledger_id, reason, detail, since_ms, bookies.writable, self._task.version)
        await self._lease.ensure_ours()
        await self._ports.parked.park(record)
        return self._ended(Ending.PARKED, reason=reason, detail=detail)

    async def _complete(self, ending: Ending) -> TaskResult:
        if not await self._lease.complete():
            return self._ended(Ending.MARKED_AGAIN)
        try:
            if await self._ports.parked.get(self._task.ledger_id) is not None:
                await self._ports.parked.unpark(self._task.ledger_id)
        except (TransientError, OutcomeUnknownError) as error:  # the queue forgets records without a task later
            _log.info("parked record stays for now", extra={"ledger_id": self._task.ledger_id, "error": str(error)})
        return self._ended(ending)

    def _stopped(self) -> TaskResult:
        return self._ended(Ending.STOPPED, detail="repair is disabled, or the session with the store is over")

    def _ended(self, ending: Ending, *, reason: ParkReason | None = None, detail: str = "") -> TaskResult:
        return TaskResult(
            self._task.ledger_id,
            ending,
            len(self._fragments),
            self._entries,
            self._bytes,
            reason=reason,
            detail=detail,
        )


def _key(ledger: Versioned, step: Step) -> PositionKey:
    return PositionKey(ledger.metadata.fragments[step.fragment_index].first_entry_id, step.position, step.old)
