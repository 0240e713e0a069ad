"""The errors of the ledger client, in the five families by the reaction that they require from the caller."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from bookie.model.errors import ConflictError, OutcomeUnknownError, PermanentError, TransientError
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.wire.port import Status

_REASONS_MAX: Final = 3
"""Maximum number of different reasons quoted in one text; most bookies fail for the same reason."""
_REASON_CHARS_MAX: Final = 300
_LOGIN_REQUIRED_HINT: Final = "a bookie that answers UNAUTHORIZED to a read asks for a login"


class NotEnoughBookiesError(TransientError):
    """Fewer writable bookies are registered than the ledger needs; start one, or ask for a smaller ensemble."""


class WrongPasswordError(PermanentError):
    """The password is not the one with which the ledger was created."""


class WrongDigestTypeError(PermanentError):
    """The ledger has another digest type than the caller expects."""


class EntryTooLargeError(PermanentError):
    """The payload exceeds ``ENTRY_PAYLOAD_MAX``; split it."""


class WriterClosedError(ConflictError):
    """The writer was closed; create a new ledger to continue."""


class InvalidEntryIdError(PermanentError):
    """An entry id out of range, an id although the writer assigns the ids, or none although the caller assigns them."""


class DuplicateEntryIdError(ConflictError):
    """The entry id was submitted to this writer before."""


class EntryIdTooFarError(TransientError):
    """Too many ids or bytes would wait for the missing ids before this one; submit those first. Nothing was changed."""


class TooManyEnsembleChangesError(PermanentError):
    """The writer has made as many ensemble changes as it was allowed to; continue in a new ledger."""


class AddOutcomeUnknownError(OutcomeUnknownError):
    """The entry may or may not be part of the ledger. Read the ledger once it is closed to find out."""


class AddQuorumTimeoutError(AddOutcomeUnknownError):
    """Too few bookies acknowledged the entry within the time allowed; the ledger can still be closed."""


class LedgerDeletedError(AddOutcomeUnknownError):
    """The ledger was deleted while it was written: none of its entries can be read any more."""


class LedgerFencedError(AddOutcomeUnknownError):
    """Another client recovers or has closed the ledger: this writer is deposed. Its last adds are in doubt."""


class CloseOutcomeUnknownError(OutcomeUnknownError):
    """The ledger's end is being decided, or was decided, by another client."""


class InvalidPollError(PermanentError):
    """The interval between two polls is not greater than 0, so a reader would poll without a pause."""


class NoSuchEntryError(ConflictError):
    """The entry lies outside the readable part of the ledger."""


class EntryUnavailableError(TransientError):
    """No replica could be read now; at least one of them may still hold the entry.

    ``reasons`` are the details of failed requests, by bookie; the text quotes those of the bookies in ``evidence``.
    """

    def __init__(
        self,
        ledger_id: LedgerId,
        entry_id: EntryId,
        evidence: dict[BookieId, Status],
        reasons: Mapping[BookieId, str] | None = None,
    ) -> None:
        answers = ", ".join(f"{bookie}: {status.name}" for bookie, status in evidence.items())
        told = [reason for bookie, reason in (reasons or {}).items() if bookie in evidence]
        if Status.UNAUTHORIZED in evidence.values():
            told.append(_LOGIN_REQUIRED_HINT)
        super().__init__(
            f"ledger {ledger_id} entry {entry_id} could not be read from any replica ({answers}){quoted(told)}"
        )
        self.ledger_id = ledger_id
        self.entry_id = entry_id
        self.evidence = evidence


class LastConfirmedUnknownError(TransientError):
    """Too few bookies of an open ledger's last ensemble answer to find the last add confirmed before the request."""

    def __init__(self, ledger_id: LedgerId, evidence: dict[BookieId, Status]) -> None:
        answers = ", ".join(f"{bookie}: {status.name}" for bookie, status in evidence.items())
        super().__init__(f"ledger {ledger_id}: too few bookies report its last add confirmed ({answers})")
        self.ledger_id = ledger_id
        self.evidence = evidence


class EntryLostError(PermanentError):
    """Every replica answered that it never stored this committed entry."""

    def __init__(self, ledger_id: LedgerId, entry_id: EntryId) -> None:
        super().__init__(f"ledger {ledger_id} entry {entry_id} is on none of its bookies: the data is lost")
        self.ledger_id = ledger_id
        self.entry_id = entry_id


class RecoveryNotPossibleError(TransientError):
    """The end of the ledger cannot be determined or stored safely with the bookies that answer now.

    The ledger stays in recovery, and nothing acknowledged is lost. Recover it again later.
    """

    def __init__(self, ledger_id: LedgerId, why: str, evidence: dict[BookieId, Status] | None = None) -> None:
        answers = ", ".join(f"{bookie}: {status.name}" for bookie, status in (evidence or {}).items())
        super().__init__(
            f"ledger {ledger_id} cannot be recovered now: {why}{f' ({answers})' if answers else ''}; "
            "it stays in recovery, run it again"
        )
        self.ledger_id = ledger_id
        self.evidence = evidence or {}


class ConfirmedEntryUnreadableError(RecoveryNotPossibleError):
    """The last confirmed entry, which contains the ledger's length, cannot be read: none of its bookies serves it now.

    It may be in a fragment before the last one. ``evidence`` contains the answer of each of its bookies.
    """

    def __init__(self, ledger_id: LedgerId, entry_id: EntryId, evidence: dict[BookieId, Status]) -> None:
        super().__init__(ledger_id, f"entry {entry_id}, which was confirmed, cannot be read", evidence)
        self.entry_id = entry_id


def quoted(reasons: Iterable[str]) -> str:
    """Return the end of a sentence with the different reasons; empty if there are none."""
    in_one_line = (" ".join(reason.split())[:_REASON_CHARS_MAX] for reason in reasons)
    different = list(dict.fromkeys(reason for reason in in_one_line if reason))[:_REASONS_MAX]
    return "".join(f"; {reason}" for reason in different)
