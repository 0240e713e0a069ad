"""Flapping bookies: ``/bkheal/returned/<ledgers root>/<id>`` contains the losses ended by a return.

Each time that a bookie is lost for longer than its delay and then returns, its ledgers were marked, and perhaps copied,
for nothing. After ``FLAPPING_RETURNS`` such losses within ``FLAPPING_WINDOW_S`` the bookie counts as flapping, and
after its next losses the marks wait longer (R74). Losses that end within the delay cost nothing and are not counted.

A loss is identified by its beginning, so recording it twice changes nothing. If the record is lost or damaged, the
ledgers of the bookie are marked after its next loss as if it had not returned before.

R rules are defined in docs/failure-model.md.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from bookie.metadata.nodes import change, child_names, remove
from bookie.metadata.own_state import own_path
from bookie.metadata.port import MetadataStore
from bookie.model.ids import BookieId
from bookie.model.records import UnreadableRecordError, decode_record, encode_record

_log = logging.getLogger(__name__)

FLAPPING_RETURNS: Final = 2
"""Number of returns after which a bookie counts as flapping. A single one may be a restart that took longer than the
delay."""
FLAPPING_WINDOW_S: Final = 6 * 3600
"""Time within which returns count."""
FLAPPING_DELAY_S: Final = 3600.0
"""A flapping bookie is missing for minutes. After an hour it is lost, however often it returned before."""
FLAPPING_DELAY_S_MAX: Final = 86_400

_RETENTION_S: Final = FLAPPING_WINDOW_S + FLAPPING_DELAY_S_MAX
"""How long records are kept: a loss that begins within the window may wait for the whole delay."""


@dataclass(frozen=True, slots=True)
class EndedLoss:
    """A marked loss, ended by the return of the bookie; epoch milliseconds."""

    since_ms: int
    returned_ms: int


@dataclass(frozen=True, slots=True)
class _Record:
    losses: tuple[EndedLoss, ...] = ()
    """The newest ``FLAPPING_RETURNS``, oldest first."""


def is_flapping(losses: Collection[EndedLoss], since_ms: int) -> bool:
    """Whether a bookie lost at ``since_ms`` counts as flapping."""
    window_ms = FLAPPING_WINDOW_S * 1000
    return sum(0 <= since_ms - loss.returned_ms <= window_ms for loss in losses) >= FLAPPING_RETURNS


class ReturnedBookies:
    """The returned bookies of the cluster at ``ledgers_root``."""

    def __init__(self, store: MetadataStore, ledgers_root: str) -> None:
        self._store = store
        self._parent = own_path("returned", ledgers_root)

    async def note(self, bookie: BookieId, ended: EndedLoss) -> None:
        """Record the end of a loss. Idempotent.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; recording it again is safe.
        """

        def noted(data: bytes | None) -> bytes:
            earlier = () if data is None else _decode(bookie, data).losses
            others = [loss for loss in earlier if loss.since_ms != ended.since_ms]
            losses = sorted([*others, ended], key=lambda loss: loss.since_ms)[-FLAPPING_RETURNS:]
            return encode_record(_Record(tuple(losses)))

        await change(self._store, self._path(bookie), noted)

    async def of(self, bookies: Collection[BookieId]) -> Mapping[BookieId, tuple[EndedLoss, ...]]:
        """Return the ended losses of those of ``bookies`` that have any.

        Raises:
            StoreUnavailableError: no answer.
        """
        names = sorted(bookies)
        nodes = await self._store.get_many_data([self._path(bookie) for bookie in names])
        found = {bookie: _decode(bookie, data) for bookie, data in zip(names, nodes, strict=True) if data is not None}
        return {bookie: record.losses for bookie, record in found.items() if record.losses}

    async def remove_old(self, now_ms: int) -> None:
        """Remove the expired records.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; removing again is safe.
        """
        names = [BookieId(name) for name in await child_names(self._store, self._parent)]
        found = await self.of(names)
        for bookie in names:
            newest_ms = max((loss.returned_ms for loss in found.get(bookie, ())), default=0)
            if now_ms - newest_ms > _RETENTION_S * 1000:
                await remove(self._store, self._path(bookie))

    def _path(self, bookie: BookieId) -> str:
        return f"{self._parent}/{bookie}"


def _decode(bookie: BookieId, data: bytes) -> _Record:
    try:
        return decode_record(data, _Record)
    except UnreadableRecordError as error:
        _log.warning(
            "record of earlier losses of a bookie cannot be read and is ignored",
            extra={"bookie_id": bookie, "error": str(error)},
        )
        return _Record()
