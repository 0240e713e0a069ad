"""What the node of a log holds: a value, its changes, and its bytes (JSON with a format number)."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final

from bookie.model.errors import ConflictError, PermanentError
from bookie.model.ids import LEDGER_ID_MAX, LedgerId

NO_LEDGER: Final = LedgerId(-1)
FORMAT: Final = 1
"""Of the node's JSON; a node of another format is not touched."""


class LogConflictError(ConflictError):
    """The log's list kept changing under a change; try again."""


class UnreadableLogError(PermanentError):
    """A log's node is damaged, or of a format that this version does not know."""


@dataclass(frozen=True, slots=True)
class LogList:
    """What the node of a log holds."""

    ledgers: tuple[LedgerId, ...] = ()
    """Ascending; only the last one may be open."""
    writer: str = ""
    """Token of the writer that listed the last ledger; no other writer may list another one."""
    trimming: tuple[LedgerId, ...] = ()
    """Ledgers that left the list and whose metadata may still have to be deleted."""
    truncated_through: LedgerId = NO_LEDGER
    """Greatest ledger that a truncation dropped."""
    last_listed: LedgerId = NO_LEDGER
    """Greatest ledger that was ever listed."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """How new ledgers are made, in the words of the log layer."""
    ctime_ms: int = 0
    is_deleted: bool = False

    @property
    def last(self) -> LedgerId | None:
        """The ledger being written, or written last."""
        return self.ledgers[-1] if self.ledgers else None

    def with_ledger(self, ledger_id: LedgerId, writer: str) -> LogList:
        """This list with one more ledger at its end, written by ``writer``.

        Raises:
            LogConflictError: a greater id was listed already.
        """
        if ledger_id <= self.last_listed:
            raise LogConflictError(f"ledger {ledger_id} does not follow ledger {self.last_listed} of the log")
        return replace(self, ledgers=(*self.ledgers, ledger_id), writer=writer, last_listed=ledger_id)

    def without(self, dropped: Collection[LedgerId], *, is_truncation: bool) -> LogList:
        """This list with ``dropped`` marked for deletion; unchanged if none of them is listed."""
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
        """This list after the metadata of ``deleted`` was deleted."""
        return replace(self, trimming=tuple(ledger_id for ledger_id in self.trimming if ledger_id not in deleted))


def encode(log: LogList) -> bytes:
    """Bytes of a log's node."""
    fields: dict[str, Any] = {
        "format": FORMAT,
        "ctime_ms": log.ctime_ms,
        "last_listed": log.last_listed,
        "ledgers": log.ledgers,
        "options": dict(log.options),
        "trimming": log.trimming,
        "truncated_through": log.truncated_through,
        "writer": log.writer,
    }
    if log.is_deleted:
        fields["is_deleted"] = True
    return json.dumps(fields, separators=(",", ":")).encode()


def decode(name: str, data: bytes) -> LogList:
    """Read the node of the log ``name``.

    Raises:
        UnreadableLogError: it is damaged, or of another format.
    """
    try:
        fields = json.loads(data)
        if fields["format"] != FORMAT:
            raise UnreadableLogError(
                f"log {name!r} is stored in format {fields['format']!r}, this version knows {FORMAT}: use a newer one"
            )
        log = LogList(
            ledgers=_ids(fields["ledgers"]),
            writer=str(fields["writer"]),
            trimming=_ids(fields["trimming"]),
            truncated_through=LedgerId(int(fields["truncated_through"])),
            last_listed=LedgerId(int(fields["last_listed"])),
            options=dict(fields["options"]),
            ctime_ms=int(fields["ctime_ms"]),
            is_deleted=bool(fields.get("is_deleted", False)),
        )
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise UnreadableLogError(f"the list of log {name!r} is damaged: {error!r}; restore its node by hand") from error
    if log.ledgers and log.ledgers[-1] > log.last_listed:
        raise UnreadableLogError(f"the list of log {name!r} is damaged: its last ledger was never listed")
    return log


def _ids(values: Sequence[int]) -> tuple[LedgerId, ...]:
    ids = tuple(LedgerId(int(value)) for value in values)
    if any(not 0 <= value <= LEDGER_ID_MAX for value in ids) or any(a >= b for a, b in pairwise(ids)):
        raise ValueError("ledger ids do not ascend")
    return ids


def is_tombstone(data: bytes) -> bool:
    """Whether a node is that of a deleted log; a damaged one is not."""
    try:
        return bool(json.loads(data).get("is_deleted", False))
    except (ValueError, AttributeError, RecursionError):
        return False
