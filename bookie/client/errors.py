"""What a user of the ledger client can meet, sorted into the five families by what the caller must do."""

from __future__ import annotations

from bookie.model.errors import ConflictError, OutcomeUnknownError, PermanentError, TransientError
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.wire.port import Status


class NotEnoughBookiesError(TransientError):
    """Fewer writable bookies are registered than the ledger needs; start one, or ask for a smaller ensemble."""


class WrongPasswordError(PermanentError):
    """The password does not match the one the ledger was created with."""


class EntryTooLargeError(PermanentError):
    """The payload exceeds ``ENTRY_PAYLOAD_MAX``; split it."""


class WriterClosedError(ConflictError):
    """The writer was closed; create a new ledger to go on."""


class AddOutcomeUnknownError(OutcomeUnknownError):
    """The entry may or may not be part of the ledger. Read the ledger once it is closed to find out."""


class LedgerFencedError(AddOutcomeUnknownError):
    """Another client recovers or has closed the ledger: this writer is deposed, and its last adds are in doubt."""


class CloseOutcomeUnknownError(OutcomeUnknownError):
    """The ledger's end is being decided, or was decided, by another client."""


class NoSuchEntryError(ConflictError):
    """The entry lies outside the readable part of the ledger."""


class EntryUnavailableError(TransientError):
    """No replica could be read now; at least one of them may still hold the entry."""

    def __init__(self, ledger_id: LedgerId, entry_id: EntryId, evidence: dict[BookieId, Status]) -> None:
        answers = ", ".join(f"{bookie}: {status.name}" for bookie, status in evidence.items())
        super().__init__(f"ledger {ledger_id} entry {entry_id} could not be read from any replica ({answers})")
        self.ledger_id = ledger_id
        self.entry_id = entry_id
        self.evidence = evidence


class EntryLostError(PermanentError):
    """Every replica answered that it never stored this committed entry."""

    def __init__(self, ledger_id: LedgerId, entry_id: EntryId) -> None:
        super().__init__(f"ledger {ledger_id} entry {entry_id} is on none of its bookies: the data is lost")
        self.ledger_id = ledger_id
        self.entry_id = entry_id
