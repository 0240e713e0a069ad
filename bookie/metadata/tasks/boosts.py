"""Boosted ledgers: ``/bkheal/boosts/<ledgers root>/<ledger id>``, with the requesting operator and the end.

Workers repair a boosted ledger before the other ledgers with the same number of copies left. A boost changes only the
order of work, so a lost or damaged record costs only time. It ends by itself, and there are at most ``BOOSTS_MAX``
boosts, because too many boosts would have no effect.

The writing and the reading machine use their own clocks, so the end is as exact as the clocks agree.

Source: docs/failure-model.md#state-under-bkheal.
"""

from __future__ import annotations

import builtins
import logging
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from bookie.metadata.nodes import WRITE_ATTEMPTS_MAX, child_names, ensure_path, ledger_ids, remove
from bookie.metadata.own_state import own_path
from bookie.metadata.port import (
    BadVersionError,
    Create,
    MetadataStore,
    MultiFailedError,
    NoNodeError,
    SetData,
    WriteOutcomeUnknownError,
)
from bookie.model.errors import ConflictError, OutcomeUnknownError, PermanentError, TransientError
from bookie.model.ids import LedgerId
from bookie.model.records import UnreadableRecordError, decode_record, encode_record

_log = logging.getLogger(__name__)

BOOSTS_MAX: Final = 100
"""Each listing by a worker reads all boosts."""


class TooManyBoostsError(ConflictError):
    """The maximum number of ledgers is boosted."""


@dataclass(frozen=True, slots=True)
class Boost:
    """One ledger to be repaired early."""

    ledger_id: LedgerId
    by: str
    since_ms: int
    until_ms: int
    """Exclusive end, epoch milliseconds."""


class Boosts:
    """The boosted ledgers of the cluster at ``ledgers_root``."""

    def __init__(self, store: MetadataStore, ledgers_root: str) -> None:
        self._store = store
        self._parent = own_path("boosts", ledgers_root)

    async def start(self, boost: Boost) -> None:
        """Boost a ledger, or replace the end of its boost. Expired boosts are removed first. Idempotent.

        Raises:
            TooManyBoostsError: ``BOOSTS_MAX`` other ledgers are boosted; nothing was changed.
            StoreUnavailableError: no answer, or other clients kept changing the boosts; nothing was changed.
            WriteOutcomeUnknownError: the outcome of every attempt is unknown; starting again is safe.
        """
        path, data = self.path(boost.ledger_id), encode_record(boost, without=["ledger_id"])
        await self.active(boost.since_ms)
        for _ in range(WRITE_ATTEMPTS_MAX):
            await ensure_path(self._store, self._parent)
            await self._store.sync(self._parent)
            parent = await self._store.stat(self._parent)
            if parent is None:
                continue
            known = ledger_ids(await child_names(self._store, self._parent))
            check_boost_capacity(known, boost.ledger_id)
            write = SetData(path, data) if boost.ledger_id in known else Create(path, data)
            try:
                # The version of the parent grows with each change, so two clients cannot exceed the bound together.
                await self._store.multi([SetData(self._parent, b"", parent.version), write])
                return
            except (MultiFailedError, WriteOutcomeUnknownError) as error:
                _log.info("boosts are read again", extra={"ledger_id": boost.ledger_id, "error": str(error)})
        raise WriteOutcomeUnknownError(
            f"boosting ledger {boost.ledger_id}: the outcome of every attempt is unknown; try again"
        )

    async def stop(self, ledger_id: LedgerId) -> None:
        """End a boost. Idempotent.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; stopping again is safe.
        """
        await remove(self._store, self.path(ledger_id))

    async def active(self, now_ms: int) -> builtins.list[Boost]:
        """Return the active boosts, by ledger id. Ended ones are removed, best effort.

        Raises:
            StoreUnavailableError: no answer.
        """
        ids = ledger_ids(await child_names(self._store, self._parent))
        if not ids:
            return []
        nodes = await self._store.get_many([self.path(ledger_id) for ledger_id in ids])
        active: list[Boost] = []
        for ledger_id, node in zip(ids, nodes, strict=True):
            boost = None if node is None else _decode(ledger_id, node.data)
            if boost is None or node is None:
                continue
            if boost.until_ms > now_ms:
                active.append(boost)
            else:
                await self._remove_ended(ledger_id, node.stat.version)
        return active

    async def recorded(self) -> frozenset[LedgerId]:
        """Return the ledgers with a record of a boost, even an ended or unreadable one.

        Raises:
            StoreUnavailableError: no answer.
        """
        return frozenset(ledger_ids(await child_names(self._store, self._parent)))

    def path(self, ledger_id: LedgerId) -> str:
        """Return the path of a ledger's boost."""
        return f"{self._parent}/{ledger_id}"

    async def _remove_ended(self, ledger_id: LedgerId, version: int) -> None:
        try:
            await self._store.delete(self.path(ledger_id), version)
        except (NoNodeError, BadVersionError):
            return
        except (TransientError, OutcomeUnknownError, ConflictError, PermanentError) as error:  # as with children
            _log.info("an ended boost could not be removed yet", extra={"ledger_id": ledger_id, "error": str(error)})


def check_boost_capacity(recorded: Collection[LedgerId], ledger_id: LedgerId) -> None:
    """Check that a ledger may be boosted in addition to those with a record.

    Raises:
        TooManyBoostsError: the maximum number of other ledgers has a record.
    """
    if ledger_id not in recorded and len(recorded) >= BOOSTS_MAX:
        raise TooManyBoostsError(
            f"{len(recorded)} ledgers are boosted, which is the maximum: wait until a boost ends, or end one with "
            "`bkheal underreplicated boost --stop`"
        )


def _decode(ledger_id: LedgerId, data: bytes) -> Boost | None:
    try:
        return decode_record(data, Boost, ledger_id=ledger_id)
    except UnreadableRecordError as error:
        _log.warning("boost cannot be read and is ignored", extra={"ledger_id": ledger_id, "error": str(error)})
        return None
