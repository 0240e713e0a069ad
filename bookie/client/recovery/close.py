"""Changes of the metadata by a recovery: the change to IN_RECOVERY, and the close. Each is compare-and-set (S4).

The end was determined from the last fragment at the start of the recovery, so it is stored only if this fragment is
unchanged. A spare is stored as a member only if it still has the disks on which its entries were found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from bookie.client.ports import ClientPorts
from bookie.metadata.ledgers.ledgers import MetadataConflictError, NoSuchLedgerError, PreconditionFailedError, Versioned
from bookie.metadata.port import Check
from bookie.model.errors import OutcomeUnknownError, TransientError
from bookie.model.ids import EntryId, LedgerId
from bookie.model.metadata import LedgerMetadata, LedgerState
from bookie.runtime.fault_points import fault_point


class TailChangedError(MetadataConflictError):
    """The last fragment, or the disks of a bookie, changed after the start of the recovery: it decides nothing."""


Decide = Callable[[LedgerMetadata], LedgerMetadata | None]


async def current_ledger(ports: ClientPorts, ledger_id: LedgerId) -> Versioned:
    """Return the ledger, at least as new as every change that was complete before this call.

    Raises:
        NoSuchLedgerError: there is no such ledger.
        UnreadableMetadataError: its metadata cannot be read, or is impossible.
        StoreUnavailableError: no answer.
    """
    ledger = await ports.ledgers.current(ledger_id)
    if ledger is None:
        raise NoSuchLedgerError(f"ledger {ledger_id} does not exist")
    return ledger


async def read_again(ports: ClientPorts, ledger: Versioned) -> Versioned:
    """Return the newest metadata of a ledger.

    Raises:
        NoSuchLedgerError: it was deleted, perhaps before another ledger with its id was created. The other one may have
            the same version (R170).
        The other errors are those of ``current_ledger``.
    """
    now = await current_ledger(ports, ledger.ledger_id)
    is_other = None not in (ledger.czxid, now.czxid) and ledger.czxid != now.czxid
    if is_other or now.version < ledger.version:
        raise NoSuchLedgerError(f"ledger {ledger.ledger_id} was deleted, and another one has its id")
    return now


async def change_metadata(
    ports: ClientPorts, ledger: Versioned, decide: Decide, checks: Sequence[Check] = ()
) -> Versioned:
    """Store the result of ``decide`` for the newest metadata if ``checks`` hold; None means no change.

    After a conflict, an unanswered request or an unknown outcome, the metadata is read and the change decided again.

    Raises:
        TailChangedError: one of ``checks`` does not hold.
        MetadataConflictError: the metadata kept changing.
        StoreUnavailableError, WriteOutcomeUnknownError: the store did not answer in ``recovery_store_attempts_max``
            attempts.
        NoSuchLedgerError: the ledger was deleted.
    """
    settings = ports.settings
    for attempt in range(settings.recovery_store_attempts_max):
        is_last = attempt + 1 == settings.recovery_store_attempts_max
        try:
            if attempt or fault_point("recovery.extra_reread"):
                ledger = await read_again(ports, ledger)
            wanted = decide(ledger.metadata)
            if wanted is None:
                return ledger
            written = await ports.ledgers.write(ledger.ledger_id, wanted, ledger.version, checks=checks)
            return replace(written, czxid=ledger.czxid)
        except PreconditionFailedError as error:
            raise TailChangedError(str(error)) from error
        except TailChangedError:
            raise
        except MetadataConflictError:
            if is_last:
                raise
        except (TransientError, OutcomeUnknownError):
            if is_last:
                raise
            await ports.clock.sleep(settings.recovery_store_retry_s)
    raise AssertionError("unreachable: the loop returns or raises")


async def begin_recovery(ports: ClientPorts, ledger: Versioned) -> Versioned:
    """Put an open ledger into recovery: from then on its writer can neither change its ensemble nor close it."""

    def decide(metadata: LedgerMetadata) -> LedgerMetadata | None:
        return replace(metadata, state=LedgerState.IN_RECOVERY) if metadata.state is LedgerState.OPEN else None

    return await change_metadata(ports, ledger, decide)


async def close_at(
    ports: ClientPorts,
    ledger: Versioned,
    closed: Callable[[LedgerMetadata, EntryId, int], LedgerMetadata | None],
    last_entry_id: EntryId,
    length: int,
    checks: Sequence[Check] = (),
) -> tuple[Versioned, bool]:
    """Close the ledger at ``last_entry_id``, unless it is already closed: then the earlier end remains.

    Args:
        ports: see ``ClientPorts``.
        ledger: the ledger, at the start of the recovery or later.
        closed: ``LedgerTail.closed``.
        last_entry_id: the end, inclusive.
        length: payload bytes up to it.
        checks: conditions for the write.

    Returns:
        The closed ledger, and whether it has the requested end.

    Raises:
        TailChangedError: the last fragment was changed, or ``checks`` do not hold.
        The other errors are those of ``change_metadata``.
    """
    wanted: list[LedgerMetadata] = []

    def decide(metadata: LedgerMetadata) -> LedgerMetadata | None:
        if metadata.is_closed:
            return None
        sealed = closed(metadata, last_entry_id, length) if metadata.state is LedgerState.IN_RECOVERY else None
        if sealed is None:
            raise TailChangedError(f"ledger {ledger.ledger_id} was changed by another client during its recovery")
        wanted.append(sealed)
        return sealed

    stored = await change_metadata(ports, ledger, decide, checks)
    tails = [sealed.last_fragment for sealed in wanted]
    is_ours = stored.metadata.last_entry_id == last_entry_id and stored.metadata.last_fragment in tails
    return stored, is_ours
