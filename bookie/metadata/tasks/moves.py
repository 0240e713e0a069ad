"""Ledgers with copies moved for placement: ``/bkheal/moves/<ledgers root>/<slot>``, with the times of the moves.

Two programs with different policies could move the copies of a ledger back and forth: each treats the other's placement
as wrong, and marks the ledger. The record bounds this: after ``MOVES_MAX`` moves within ``WINDOW_MS``, bkheal does not
move a ledger again.

There are at most ``SLOTS`` records, each with up to ``SLOT_LEDGERS_MAX`` ledgers. In a full record, a new ledger
replaces the one with the oldest move. So the records need no listing and no removal. A lost or damaged record allows
more moves and has no other effect. The writing and the reading machine use their own clocks; an error of hours does not
matter.

Source: docs/failure-model.md#state-under-bkheal.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Final

from bookie.metadata.nodes import change, find
from bookie.metadata.own_state import own_path
from bookie.metadata.port import MetadataStore
from bookie.model.ids import LedgerId
from bookie.model.records import UnreadableRecordError, decode_record, encode_record

_log = logging.getLogger(__name__)

SLOTS: Final = 256
SLOT_LEDGERS_MAX: Final = 400
"""Maximum number of ledgers in a record, which then has about 16 KB."""
MOVES_MAX: Final = 2
"""One move repairs the placement; a second one allows for a later correction of the topology."""
WINDOW_MS: Final = 30 * 86_400_000
"""Longer than the usual time between two placement checks."""


@dataclass(frozen=True, slots=True)
class _Record:
    moves: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Times of the last moves in epoch milliseconds, ascending, by ledger id."""


class MovedLedgers:
    """Moves of the cluster at ``ledgers_root``."""

    def __init__(self, store: MetadataStore, ledgers_root: str) -> None:
        self._store = store
        self._parent = own_path("moves", ledgers_root)

    async def count(self, ledger_id: LedgerId, now_ms: int) -> int:
        """Return the number of recent moves of a ledger, at most ``MOVES_MAX``.

        Raises:
            StoreUnavailableError: no answer.
        """
        node = await find(self._store, self.path(ledger_id))
        times = _decode(None if node is None else node.data).moves.get(str(ledger_id), ())
        return len(_recent(times, now_ms))

    async def note(self, ledger_id: LedgerId, now_ms: int) -> None:
        """Record a move of a ledger's copies. Recording the same time again changes nothing.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; recording it again is safe.
        """

        def noted(data: bytes | None) -> bytes:
            moves = {name: recent for name, times in _decode(data).moves.items() if (recent := _recent(times, now_ms))}
            moves[str(ledger_id)] = tuple(sorted({*moves.get(str(ledger_id), ()), now_ms}))[-MOVES_MAX:]
            kept = sorted(moves.items(), key=lambda item: item[1][-1])[-SLOT_LEDGERS_MAX:]
            return encode_record(_Record(dict(kept)))

        await change(self._store, self.path(ledger_id), noted)

    def path(self, ledger_id: LedgerId) -> str:
        """Return the path of a ledger's record."""
        return f"{self._parent}/{ledger_id % SLOTS}"


def _recent(times: tuple[int, ...], now_ms: int) -> tuple[int, ...]:
    return tuple(each for each in times if each > now_ms - WINDOW_MS)[-MOVES_MAX:]


def _decode(data: bytes | None) -> _Record:
    if data is None:
        return _Record()
    try:
        return decode_record(data, _Record)
    except UnreadableRecordError as error:
        _log.warning("record of moved ledgers cannot be read and is treated as empty", extra={"error": str(error)})
        return _Record()
