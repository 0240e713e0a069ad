"""The remaining work of drains and its reasons, from metadata, tasks and parked tasks. Also marks ledgers again.

A drain is complete when no metadata names the bookie any more. One pass over all ledgers finds those that do; after it,
only these ledgers are read again, and a last pass over all ledgers confirms the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from auditor.safety.holdings import HeldLedgers
from auditor.safety.scan import Advance, LedgerScanResult, scan
from bookie.client.ports import ClientPorts
from bookie.metadata.ledgers.ledgers import LedgerStore, Unreadable
from bookie.metadata.tasks.decisions import Decision, accepted_in
from bookie.metadata.tasks.locks import Task
from bookie.metadata.tasks.parked import ParkedTask, ParkedTasks
from bookie.metadata.tasks.underreplication import UnderReplication, UnreadableTask
from bookie.model.ids import BookieId, LedgerId
from bookie.model.metadata import LedgerMetadata

_READ_LEDGERS: Final = 10_000
_MARKS_PER_BATCH: Final = 5_000
SHOWN_MAX: Final = 10
_NONE_ACCEPTED: Final[Mapping[LedgerId, Decision]] = MappingProxyType({})


@dataclass(slots=True)
class Left:
    """The data that is still on certain bookies, and why."""

    holdings: HeldLedgers
    scanned: LedgerScanResult
    unmarked: list[LedgerId] = field(default_factory=list)
    """Ledgers without a task for the bookie: no worker repairs them."""
    unreadable_marks: int = 0
    """The number of ledgers with a task that cannot be read: no worker repairs them, and marking changes nothing."""
    parked: Counter[str] = field(default_factory=Counter)
    """Ledgers that cannot be moved now, by reason."""
    examples: list[ParkedTask] = field(default_factory=list)

    @property
    def is_certainly_empty(self) -> bool:
        """Whether it is certain that nothing is left."""
        return not self.holdings.ledgers and self.scanned.is_complete

    @property
    def moving(self) -> int:
        """The number of ledgers that are in repair, or wait only for a worker."""
        waiting = len(self.unmarked) + self.unreadable_marks + sum(self.parked.values())
        return len(self.holdings.ledgers) - waiting


async def holdings_of(
    ledgers: LedgerStore,
    bookies: Collection[BookieId],
    advance: Advance,
    accepted: Mapping[LedgerId, Decision] = _NONE_ACCEPTED,
) -> tuple[HeldLedgers, LedgerScanResult]:
    """Read all ledgers once, and return the data on ``bookies``. ``accepted`` has valid accepted losses.

    Raises:
        NotAClusterError, StoreUnavailableError: see ``scan``.
    """
    found, wanted = HeldLedgers(), frozenset(bookies)

    def visit(ledger_id: LedgerId, metadata: LedgerMetadata) -> None:
        found.add(ledger_id, metadata, wanted, accepted_in(accepted, ledger_id, metadata))

    return found, await scan(ledgers, wanted, visit, advance)


async def read_holdings_of_ledgers(
    ledgers: LedgerStore,
    bookies: Collection[BookieId],
    ids: Sequence[LedgerId],
    accepted: Mapping[LedgerId, Decision] = _NONE_ACCEPTED,
) -> tuple[HeldLedgers, LedgerScanResult]:
    """Return the data on ``bookies`` as ``holdings_of`` does, but only of these ledgers.

    Raises:
        StoreUnavailableError: no answer.
    """
    found, wanted, result = HeldLedgers(), frozenset(bookies), LedgerScanResult()
    for start in range(0, len(ids), _READ_LEDGERS):
        part = ids[start : start + _READ_LEDGERS]
        for ledger_id, metadata in zip(part, await ledgers.read_many_metadata(part), strict=True):
            if isinstance(metadata, Unreadable):
                result.unreadable_count += 1
            elif metadata is not None:
                result.ledgers += 1
                found.add(ledger_id, metadata, wanted, accepted_in(accepted, ledger_id, metadata))
    return found, result


async def judge(holdings: HeldLedgers, scanned: LedgerScanResult, tasks: UnderReplication, parked: ParkedTasks) -> Left:
    """Find the reason why each remaining ledger waits.

    Raises:
        StoreUnavailableError: no answer.
    """
    left = Left(holdings, scanned)
    if not holdings.ledgers:
        return left
    marks = await tasks.list_all()
    named = {task.ledger_id: frozenset(task.missing) for task in marks if isinstance(task, Task)}
    unreadable = {task.ledger_id for task in marks if isinstance(task, UnreadableTask)}
    waiting = {record.ledger_id: record for record in await parked.list()}
    for ledger_id, bookies in holdings.ledgers.items():
        if ledger_id in unreadable:
            left.unreadable_marks += 1
        elif not named.get(ledger_id, frozenset()) >= set(bookies):
            left.unmarked.append(ledger_id)
        elif (record := waiting.get(ledger_id)) is not None:
            left.parked[record.reason.value] += 1
            if len(left.examples) < SHOWN_MAX:
                left.examples.append(record)
    return left


async def unreadable_marks(tasks: UnderReplication, ledgers: Collection[LedgerId]) -> frozenset[LedgerId]:
    """Return those of ``ledgers`` whose task cannot be read. Such a task is never changed.

    Raises:
        StoreUnavailableError: no answer.
    """
    found: set[LedgerId] = set()
    ids = list(ledgers)
    for start in range(0, len(ids), _MARKS_PER_BATCH):
        marks = await tasks.read_many(ids[start : start + _MARKS_PER_BATCH])
        found.update(task.ledger_id for task in marks if isinstance(task, UnreadableTask))
    return frozenset(found)


async def mark(
    tasks: UnderReplication, findings: Mapping[LedgerId, Sequence[BookieId]], advance: Advance | None = None
) -> int:
    """Mark each ledger as lacking its bookies in ``findings``. Return the number of tasks created or changed.

    Raises:
        StoreUnavailableError, WriteOutcomeUnknownError, ConflictError: only a part is marked; mark all again.
    """
    await tasks.initialize()
    pairs = list(findings.items())
    changed = 0
    for start in range(0, len(pairs), _MARKS_PER_BATCH):
        part = pairs[start : start + _MARKS_PER_BATCH]
        changed += await tasks.marking.mark_many(part)
        if advance is not None:
            advance(len(part))
    return changed


async def mark_unmarked(ports: ClientPorts, left: Left, drained: AbstractSet[BookieId]) -> int:
    """Mark ledgers without a task, for example because another program's worker found nothing missing and deleted it.

    Only drained bookies are named. For a bookie that is merely lost, the brake, its delay, a maintenance window or an
    operator may be the reason why a ledger has no task.

    Raises:
        StoreUnavailableError, WriteOutcomeUnknownError, ConflictError: see ``mark``.
    """
    named = {
        ledger_id: [bookie for bookie in left.holdings.ledgers[ledger_id] if bookie in drained]
        for ledger_id in left.unmarked
    }
    return await mark(ports.tasks, {ledger_id: bookies for ledger_id, bookies in named.items() if bookies})
