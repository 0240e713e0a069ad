"""Values and errors of logs: positions, entries, options."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from bookie.client.errors import AddOutcomeUnknownError
from bookie.client.options import LedgerOptions
from bookie.metadata.logs.log_list import UnreadableLogError
from bookie.model.errors import ConflictError, PermanentError
from bookie.model.ids import LEDGER_ID_MAX, EntryId, LedgerId
from bookie.model.metadata import DigestType

_POSITION: Final = re.compile(r"([0-9]{1,19}):([0-9]{1,19})")
LOG_METADATA_KEY: Final = "bkheal-log"
"""Custom metadata of a log's ledgers: the name of the log."""


class InvalidPositionError(PermanentError):
    """Not a position, or a position that the log never had."""


class InvalidLogOptionsError(PermanentError):
    """Impossible bounds for a log."""


class LogDeposedError(AddOutcomeUnknownError):
    """Another writer has taken over the log, or the log was deleted: this writer has ended.

    Appends under way may or may not be part of the log; read it to find out. ``Log.write`` takes it over again.
    """


class LogTruncatedError(ConflictError):
    """The position lies before the start of the log: it was truncated. ``first`` is the new start.

    Attributes:
        first: the first readable position now; None if the log is empty.
    """

    def __init__(self, name: str, position: LogPosition, first: LogPosition | None) -> None:
        start = "it is empty now" if first is None else f"it starts at {first} now"
        super().__init__(f"log {name!r} was truncated beyond {position}; {start}")
        self.first = first


@dataclass(frozen=True, slots=True, order=True)
class LogPosition:
    """The position of an entry.

    Positions compare in the order of the log; ``str`` and ``parse`` are inverse.
    """

    ledger_id: LedgerId
    entry_id: EntryId

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}"

    @classmethod
    def parse(cls, text: str) -> LogPosition:
        """Parse ``ledger:entry``.

        Raises:
            InvalidPositionError: the text has another form.
        """
        match = _POSITION.fullmatch(text)
        if match is None or max(map(int, match.groups())) > LEDGER_ID_MAX:
            raise InvalidPositionError(
                f"{text[:60]!r} is not a position in a log: write ledger:entry, for example 17:0"
            )
        return cls(LedgerId(int(match[1])), EntryId(int(match[2])))

    def following(self) -> LogPosition:
        """Return the position after this entry.

        It may lie beyond the end of its ledger; reading then continues in the next one.
        """
        return LogPosition(self.ledger_id, EntryId(self.entry_id + 1))


@dataclass(frozen=True, slots=True)
class LogEntry:
    """An entry of a log."""

    position: LogPosition
    payload: bytes


@dataclass(frozen=True, slots=True)
class LogOptions:
    """How a log creates its ledgers. Stored with the log, so that later writers create them in the same way."""

    ledger: LedgerOptions = field(default_factory=LedgerOptions)
    ledger_bytes_max: int = 1 << 30
    """Payload bytes after which the log rolls over to a new ledger. Truncation frees whole ledgers."""
    ledger_age_s_max: float = 3600.0
    """Age of a ledger, in seconds, after which the next append rolls over. An empty ledger is not replaced."""

    def check(self) -> None:
        """Refuse impossible options.

        Raises:
            InvalidQuorumError: see ``LedgerOptions.check``.
            InvalidLogOptionsError: a bound is not positive.
        """
        self.ledger.check()
        if self.ledger_bytes_max < 1 or not self.ledger_age_s_max > 0:
            raise InvalidLogOptionsError("the largest size and age of a log's ledgers must be positive")

    def to_json(self) -> dict[str, Any]:
        """Return the options in the form that is stored with the log."""
        return {
            "ensemble_size": self.ledger.ensemble_size,
            "write_quorum": self.ledger.write_quorum,
            "ack_quorum": self.ledger.ack_quorum,
            "digest_type": self.ledger.digest_type.name,
            "ledger_bytes_max": self.ledger_bytes_max,
            "ledger_age_s_max": self.ledger_age_s_max,
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> LogOptions:
        """Return the options from the form of ``to_json``.

        Raises:
            UnreadableLogError: the fields are not in the form of ``to_json``.
        """
        try:
            shape = (int(fields["ensemble_size"]), int(fields["write_quorum"]), int(fields["ack_quorum"]))
            ledger = LedgerOptions(*shape, digest_type=DigestType[fields["digest_type"]])
            return cls(ledger, int(fields["ledger_bytes_max"]), float(fields["ledger_age_s_max"]))
        except (KeyError, TypeError, ValueError) as error:
            raise UnreadableLogError(f"the options of a log are damaged: {error!r}") from error
