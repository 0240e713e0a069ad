"""The compare-and-set loop for ledger metadata: read, decide with a pure function, write at that version; or repeat.

Source of the rule: docs/formats.md#recovery (last paragraph), safety rule S4. ``decide`` may run many times and must
have no side effects.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from bookie.metadata.ledgers.ledgers import (
    ConflictInDoubtError,
    LedgerStore,
    MetadataConflictError,
    NoSuchLedgerError,
    Versioned,
)
from bookie.metadata.port import StoreUnavailableError, WriteOutcomeUnknownError
from bookie.model.metadata import LedgerMetadata
from bookie.runtime.fault_points import fault_point

ATTEMPTS_MAX: Final = 20
"""Maximum number of attempts. Only recovery and repair of the same ledger cause conflicts, and only a few; more of them
mean that something is broken."""


async def update_metadata(
    ledgers: LedgerStore, current: Versioned, decide: Callable[[LedgerMetadata], LedgerMetadata | None]
) -> Versioned:
    """Apply ``decide`` to the newest metadata; None means no change.

    Returns:
        The metadata as it is stored now.

    Raises:
        MetadataConflictError: the metadata kept changing for ``ATTEMPTS_MAX`` rounds.
        NoSuchLedgerError: the ledger was deleted.
        StoreUnavailableError: no answer; nothing was changed by this call.
        WriteOutcomeUnknownError: the answer to the write was lost, and the node could not be read.
    """
    if fault_point("writer.extra_reread"):
        current = await newest(ledgers, current)
    for attempt in range(ATTEMPTS_MAX):
        wanted = decide(current.metadata)
        if wanted is None:
            return current
        if attempt + 1 < ATTEMPTS_MAX and fault_point("writer.forced_conflict"):
            current = await newest(ledgers, current)
            continue
        try:
            return await ledgers.write(current.ledger_id, wanted, current.version)
        except MetadataConflictError as conflict:
            if attempt + 1 == ATTEMPTS_MAX:
                raise
            try:
                current = await newest(ledgers, current)
            except StoreUnavailableError as error:
                if isinstance(conflict, ConflictInDoubtError):
                    raise WriteOutcomeUnknownError(
                        f"{conflict}, perhaps by this call, and the metadata cannot be read now"
                    ) from error
                raise
    raise AssertionError("unreachable: the loop returns or raises")


async def newest(ledgers: LedgerStore, known: Versioned) -> Versioned:
    """Return the metadata as of this call. A value older than our own last write would look like another client's.

    Raises:
        NoSuchLedgerError: the ledger was deleted.
        StoreUnavailableError: no answer.
    """
    found = await ledgers.current(known.ledger_id)
    if found is None:
        raise NoSuchLedgerError(f"ledger {known.ledger_id} does not exist")
    return found
