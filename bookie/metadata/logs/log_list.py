"""The record of a log: a value and its changes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final

from bookie.model.errors import ConflictError, PermanentError
from bookie.model.ids import LEDGER_ID_MAX, LedgerId
from bookie.model.records import UnreadableRecordError, decode_record, encode_record

NO_LEDGER: Final = LedgerId(-1)


class LogConflictError(ConflictError):
    """Other clients kept changing the log's list during a change; try again."""


class UnreadableLogError(PermanentError):
    """A log's node is damaged, or of a newer format."""


@dataclass(frozen=True, slots=True)
class LogList:
    """Content of a log's node."""

    ledgers: tuple[LedgerId, ...] = ()
    """Ascending; only the last one may be open."""
    writer: str = ""
    """Token of the writer of the last listed ledger; no other writer may list a ledger."""
    trimming: tuple[LedgerId, ...] = ()
    """Ledgers removed from the list whose metadata may still have to be deleted."""
    truncated_through: LedgerId = NO_LEDGER
    """Greatest ledger dropped by a truncation."""
    last_listed: LedgerId = NO_LEDGER
    """Greatest ledger ever listed."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options for new ledgers, in the words of the log layer."""
    ctime_ms: int = 0
    is_deleted: bool = False

    @property
    def last(self) -> LedgerId | None:
        """The ledger being written, or the last one written."""
        return self.ledgers[-1] if self.ledgers else None

    def with_ledger(self, ledger_id: LedgerId, writer: str) -> LogList:
        """Return this list with one more ledger at its end, written by ``writer``.

        Raises:
            LogConflictError: a greater id was listed already.
        """
        if ledger_id <= self.last_listed:
            raise LogConflictError(f"ledger {ledger_id} does not follow ledger {self.last_listed} of the log")
        return replace(self, ledgers=(*self.ledgers, ledger_id), writer=writer, last_listed=ledger_id)

    def without(self, dropped: Collection[LedgerId], *, is_truncation: bool) -> LogList:
        """Return this list with ``dropped`` marked for deletion; unchanged if none of them is listed."""
        leaving = tuple(ledger_id for ledger_id in self.ledgers if ledger_id in dropped)
        if not leaving:
            return self
        return replace(
            self,
            ledgers=tuple(ledger_id for ledger_id in self.ledgers if ledger_id not in dropped),
            trimming=tuple(sorted({*self.trimming, *leaving})),
            truncated_through=max(self.truncated_through, leaving[-1]) if is_truncation else self.truncated_through,
        )

    def trimmed(self, deleted: Collection[LedgerId]) -> LogList:
        """Return this list after the deletion of the metadata of ``deleted``."""
        return replace(self, trimming=tuple(ledger_id for ledger_id in self.trimming if ledger_id not in deleted))


_REQUIRED_FIELDS: Final = ("ledgers", "last_listed", "trimming", "truncated_through", "writer")
"""Required fields: without them, ledgers or the rule of a single writer would be lost."""


def encode(log: LogList) -> bytes:
    """Bytes of a log's node."""
    return encode_record(log)


def decode(name: str, data: bytes) -> LogList:
    """Read the node of the log ``name``.

    Raises:
        UnreadableLogError: it is damaged, or of a newer format.
    """
    try:
        log = decode_record(data, LogList, required=_REQUIRED_FIELDS)
    except UnreadableRecordError as error:
        raise UnreadableLogError(
            f"the list of log {name!r} is unreadable: {error}; restore its node by hand"
        ) from error
    if not _is_ascending(log.ledgers) or not _is_ascending(log.trimming):
        raise UnreadableLogError(f"the list of log {name!r} is damaged: ledger ids do not ascend")
    if log.ledgers and log.ledgers[-1] > log.last_listed:
        raise UnreadableLogError(f"the list of log {name!r} is damaged: its last ledger was never listed")
    return log


def _is_ascending(ids: Sequence[LedgerId]) -> bool:
    return all(0 <= value <= LEDGER_ID_MAX for value in ids) and all(a < b for a, b in pairwise(ids))


def is_tombstone(data: bytes) -> bool:
    """Whether a node belongs to a deleted log; false for a damaged one."""
    try:
        return decode_record(data, LogList).is_deleted
    except UnreadableRecordError:
        return False
