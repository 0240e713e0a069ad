"""Mark the ledgers for which a worker recorded damage while they were open.

Source: R140, docs/failure-model.md#R140.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

from bookie.metadata.ledgers.ledgers import LedgerStore, Unreadable
from bookie.metadata.port import AccessDeniedError
from bookie.metadata.tasks.damage_notes import DamageNote, DamageNotes
from bookie.model.errors import ConflictError, OutcomeUnknownError, TransientError
from bookie.model.ids import BookieId
from spark_jobs.runs.marking.publish import Marking

_log = logging.getLogger(__name__)


async def mark_recorded_damage(
    notes: DamageNotes,
    ledgers: LedgerStore,
    mark: Callable[[Sequence[Marking]], Awaitable[int | None]],
) -> Sequence[Marking]:
    """Mark the recorded ledgers that are closed; delete their records, and the records of deleted ledgers.

    If a record cannot be deleted now, a later call marks its ledger again and deletes the record.

    Args:
        notes: the records.
        ledgers: the metadata of the ledgers.
        mark: marks ledgers with members. While recovery is disabled, it does nothing and returns None.

    Returns:
        The ledgers that were marked, with their members.

    Raises:
        StoreUnavailableError, WriteOutcomeUnknownError, ConflictError: no answer; the records stay, and some of the
            ledgers may be marked.
    """
    noted = await notes.all()
    found = await ledgers.read_many_permitted([note.ledger_id for note in noted])
    ended: list[DamageNote] = []
    markings: list[Marking] = []
    for note, ledger in zip(noted, found, strict=True):
        if isinstance(ledger, Unreadable) or (ledger is not None and not ledger.metadata.is_closed):
            continue
        ended.append(note)
        members: frozenset[BookieId] = frozenset() if ledger is None else ledger.metadata.members()
        named = members if note.members is None else members & note.members
        if named:
            markings.append((note.ledger_id, tuple(sorted(named))))
    if markings and await mark(markings) is None:
        return []
    if markings:
        _log.info("closed ledgers with recorded damage are marked", extra={"ledgers": len(markings)})
    try:
        for note in ended:
            await notes.remove(note)
    except (TransientError, ConflictError, OutcomeUnknownError, AccessDeniedError) as error:
        _log.warning(
            "records of damage could not be deleted, so a later run marks the ledgers again",
            extra={"reason": str(error)},
        )
    return markings
