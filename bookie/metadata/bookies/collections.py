"""Garbage collections held back by bookies: ``/bkheal/collections/<ledgers root>/<bookieId>``.

A bookie deletes nothing if an implausibly large part of its ledgers would be deleted (S12): their metadata may be lost,
and the entries may be all that is left of them. The bookie records the held collection. If the ledgers were deleted on
purpose, an operator allows the collection, up to a number of ledgers and for a limited time.

The invariant: a record allows a collection only if it is readable, the bookie's clock is within its time, and the
number of ledgers to delete is within its bound. So a forgotten, damaged or outdated record keeps the data.

S rules are defined in docs/invariants.md.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from bookie.metadata.nodes import change, child_names, find, remove
from bookie.metadata.own_state import own_path
from bookie.metadata.port import BadVersionError, MetadataStore, NoNodeError
from bookie.model.errors import ConflictError
from bookie.model.ids import BookieId
from bookie.model.records import UnreadableRecordError, decode_record, encode_record
from bookie.model.times import CLOCK_SKEW_MS_MAX

_log = logging.getLogger(__name__)

ALLOWANCE_S_MAX: Final = 7 * 86_400
"""Longest duration of an allowance, so that a forgotten one ends after a week."""


class NothingHeldError(ConflictError):
    """The bookie holds back no collection."""


@dataclass(frozen=True, slots=True)
class HeldCollection:
    """One bookie's held collection, and the operator's allowance."""

    bookie: BookieId
    ledgers: int
    """Number of ledgers to delete in the last held pass."""
    known: int
    """Number of ledgers with entries on the bookie at the time."""
    since_ms: int
    """Time of the first held pass, epoch milliseconds."""
    allowed_by: str = ""
    allowed_since_ms: int = 0
    allowed_until_ms: int = 0
    """Exclusive end, epoch milliseconds; 0: nothing is allowed."""
    allowed_max: int = 0
    """Maximum number of ledgers deleted by one pass."""

    def allows(self, ledgers: int, now_ms: int) -> bool:
        """Whether a pass may delete this number of ledgers now."""
        return ledgers <= self.allowed_max and self.is_allowed(now_ms)

    def is_allowed(self, now_ms: int) -> bool:
        """Whether anything is allowed now."""
        is_bounded = self.allowed_until_ms - self.allowed_since_ms <= ALLOWANCE_S_MAX * 1000
        return is_bounded and self.allowed_since_ms - CLOCK_SKEW_MS_MAX <= now_ms < self.allowed_until_ms


class HeldCollections:
    """The records of the cluster at ``ledgers_root``."""

    def __init__(self, store: MetadataStore, ledgers_root: str) -> None:
        self._store = store
        self._parent = own_path("collections", ledgers_root)

    async def hold(self, bookie: BookieId, ledgers: int, known: int, now_ms: int) -> HeldCollection:
        """Record a held collection, and return the record with its allowance. Durable on return.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; delete nothing.
        """
        held = HeldCollection(bookie, ledgers, known, now_ms)

        def decide(data: bytes | None) -> bytes:
            before = None if data is None else _decode(bookie, data)
            return _encode(held if before is None else replace(before, ledgers=ledgers, known=known))

        data = await change(self._store, self.path(bookie), decide)
        return (None if data is None else _decode(bookie, data)) or held

    async def end(self, bookie: BookieId) -> None:
        """Remove the record of a bookie that no longer holds a collection back, unless it changes during the call.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; ending it again is safe.
        """
        node = await find(self._store, self.path(bookie))
        if node is None:
            return
        try:
            await self._store.delete(self.path(bookie), node.stat.version)
        except (NoNodeError, BadVersionError):
            return

    async def allow(
        self, bookie: BookieId, by: str, now_ms: int, until_ms: int, ledgers_max: int | None = None
    ) -> HeldCollection:
        """Allow a bookie's held collection, and return the record. A new allowance replaces an earlier one.

        Args:
            bookie: the bookie.
            by: name of the operator, for display.
            now_ms: the beginning, epoch milliseconds.
            until_ms: the exclusive end, epoch milliseconds.
            ledgers_max: maximum number of ledgers deleted by a pass; None: the ``default_allowance`` for the record.

        Raises:
            NothingHeldError: the bookie has no readable record; nothing was changed.
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; allowing it again is safe.
        """

        def decide(data: bytes | None) -> bytes:
            held = None if data is None else _decode(bookie, data)
            if held is None:
                raise NothingHeldError(
                    f"{bookie} holds back no collection: `bkheal collection list` shows which bookies do"
                )
            most = default_allowance(held.ledgers) if ledgers_max is None else ledgers_max
            return _encode(
                replace(held, allowed_by=by, allowed_since_ms=now_ms, allowed_until_ms=until_ms, allowed_max=most)
            )

        data = await change(self._store, self.path(bookie), decide)
        held = None if data is None else _decode(bookie, data)
        assert held is not None, "an allowance that was written can be read"
        return held

    async def remove(self, bookie: BookieId) -> None:
        """Remove a record with its allowance. If the bookie still holds a collection back, it records it again.
        Idempotent.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; removing it again is safe.
        """
        await remove(self._store, self.path(bookie))

    async def exists(self, bookie: BookieId) -> bool:
        """Whether there is a record of the bookie, also an unreadable one.

        Raises:
            StoreUnavailableError: no answer.
        """
        await self._store.sync(self._parent)
        return await self._store.stat(self.path(bookie)) is not None

    async def all(self) -> Sequence[HeldCollection]:
        """Return every readable record, by bookie.

        Raises:
            StoreUnavailableError: no answer.
        """
        await self._store.sync(self._parent)
        names = sorted(await child_names(self._store, self._parent))
        nodes = await self._store.get_many_data([f"{self._parent}/{name}" for name in names]) if names else []
        found = (_decode(BookieId(name), data) for name, data in zip(names, nodes, strict=True) if data is not None)
        return [held for held in found if held is not None]

    def path(self, bookie: BookieId) -> str:
        """Return the path of a bookie's record."""
        return f"{self._parent}/{bookie}"


def default_allowance(ledgers: int) -> int:
    """Return how many ledgers a pass may delete if ``ledgers`` were held back: a tenth more. Pure."""
    return ledgers + ledgers // 10


def _encode(held: HeldCollection) -> bytes:
    return encode_record(held, without=["bookie"])


def _decode(bookie: BookieId, data: bytes) -> HeldCollection | None:
    try:
        return decode_record(data, HeldCollection, bookie=bookie)
    except UnreadableRecordError as error:
        _log.warning("record of a held collection cannot be read", extra={"bookie_id": bookie, "error": str(error)})
        return None
