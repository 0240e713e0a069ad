"""When each lost bookie was first seen down, and when it was audited: ``/bkheal/first-seen-down/<root>/<id>``.

Kept in the store, so the lost-bookie delay continues across a change of leader, and across independent one-shot audits.
Losing a node only restarts a delay: the mark is late, and never too early.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any, Final

from bookie.metadata.bookies.returned import EndedLoss, ReturnedBookies
from bookie.metadata.nodes import change, child_names, find, put, remove
from bookie.metadata.own_state import own_path
from bookie.metadata.port import MetadataStore
from bookie.model.ids import BookieId
from bookie.model.records import UnreadableRecordError, decode_record, encode_record
from bookie.model.times import CLOCK_SKEW_MS_MAX

_log = logging.getLogger(__name__)


_HOLD_MS_MAX: Final = 8 * 86_400_000
"""Limit of a hold, longer than the hold of any rule. A damaged time delays a repair by this much at most."""


@dataclass(frozen=True, slots=True)
class Down:
    """Record of a lost bookie; times in epoch milliseconds."""

    since_ms: int
    """When an auditor first saw the bookie unregistered."""
    audited_ms: int = 0
    """End of a complete audit that counted the bookie as lost; 0 if there was none."""
    is_delay_waived: bool = False
    """An immediate audit was requested: the delay for lost bookies does not apply to this loss."""
    critical_audited_ms: int = 0
    """End of a complete audit that was allowed to mark the bookie's critical ledgers; 0 if there was none."""
    held_until_ms: int = 0
    """When the hold by an auditor's rule ends; 0 if there is none. Workers obey it (``due_ms``)."""

    def delay_end_ms(self, delay_s: int) -> int:
        """End of a lost-bookie delay of ``delay_s`` seconds."""
        return self.since_ms + (0 if self.is_delay_waived else delay_s * 1000)

    def due_ms(self, delay_s: int) -> int:
        """Return when the bookie counts as lost: at the end of both the delay and the hold, which is bounded."""
        held_ms = 0 if self.is_delay_waived else min(self.held_until_ms, self.since_ms + _HOLD_MS_MAX)
        return max(self.delay_end_ms(delay_s), held_ms)


class FirstSeenDown:
    """The lost bookies of the cluster at ``ledgers_root``."""

    def __init__(self, store: MetadataStore, ledgers_root: str) -> None:
        self._store = store
        self._parent = own_path("first-seen-down", ledgers_root)
        self._returned = ReturnedBookies(store, ledgers_root)

    async def read(self) -> Mapping[BookieId, Down]:
        """Return every recorded bookie. A damaged record is logged and omitted, and then written again.

        Raises:
            StoreUnavailableError: no answer.
        """
        names = await child_names(self._store, self._parent)
        nodes = await self._store.get_many_data([f"{self._parent}/{name}" for name in names])
        found = {BookieId(name): _decode(name, data) for name, data in zip(names, nodes, strict=True) if data}
        return {bookie: down for bookie, down in found.items() if down is not None}

    async def reconcile(
        self, lost: AbstractSet[BookieId], now_ms: int, *, registered: AbstractSet[BookieId]
    ) -> Mapping[BookieId, Down]:
        """Record each new bookie of ``lost``, remove the records of others, and return the resulting records.

        The record of a bookie outside ``lost`` is removed if the bookie is registered, or if its loss was audited.
        Otherwise the record stays and is in the result: its cookie was deleted, but ledgers may name it (R142).

        A loss in the future was recorded by a wrong clock. It is changed to begin now; otherwise its delay might never
        end. Two concurrent calls agree, because the first record of a bookie stays. Before the record of a registered
        bookie is removed, an audited loss is recorded as ended, so that flapping bookies are recognized.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; doing it again is safe.
        """
        noted = await self.read()
        kept = lost | (unaudited(noted) - registered)
        for bookie in sorted(noted.keys() - kept):
            if bookie in registered and (noted[bookie].audited_ms or noted[bookie].critical_audited_ms):
                await self._returned.note(bookie, EndedLoss(noted[bookie].since_ms, now_ms))
            await self.forget(bookie)
        result = {bookie: down for bookie, down in noted.items() if bookie in kept}
        for bookie in sorted(lost - noted.keys()):
            result[bookie] = await self._change(bookie, lambda known: known or Down(now_ms))
        for bookie, down in result.items():
            if down.since_ms > now_ms + CLOCK_SKEW_MS_MAX:
                _log.warning(
                    "a bookie is recorded as lost from a time in the future, its delay begins now",
                    extra={"bookie_id": bookie},
                )
                result[bookie] = await self._change(bookie, lambda known: _with_earliest_time(known, now_ms))
        return result

    async def reopen(self, bookie: BookieId, since_ms: int) -> None:
        """Clear the times of audits: the bookie may have returned while no leader was watching.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; doing it again is safe.
        """
        await self._change_loss(bookie, since_ms, audited_ms=0, critical_audited_ms=0)

    async def evaluated_version(self) -> str:
        """Return the last version of the registrations evaluated by a leader; empty if there is none.

        See ``reopen``.

        Raises:
            StoreUnavailableError: no answer.
        """
        node = await find(self._store, self._parent)
        return "" if node is None else node.data.decode(errors="replace")

    async def record_evaluated_version(self, version: str) -> None:
        """Record this version of the registrations as evaluated.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; doing it again is safe.
        """
        await put(self._store, self._parent, version.encode())

    async def note_audited(self, bookie: BookieId, since_ms: int, audited_ms: int) -> None:
        """Record an audit of the loss begun at ``since_ms``; do nothing if the bookie has returned since.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; doing it again is safe.
        """
        await self._change_loss(bookie, since_ms, audited_ms=audited_ms)

    async def note_critical_audited(self, bookie: BookieId, since_ms: int, audited_ms: int) -> None:
        """Record an audit of this loss's critical ledgers; do nothing if the bookie has returned since.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; doing it again is safe.
        """
        await self._change_loss(bookie, since_ms, critical_audited_ms=audited_ms)

    async def waive_delay(self, bookie: BookieId, since_ms: int) -> None:
        """Waive the delay of the loss begun at ``since_ms``; do nothing if the bookie has returned since.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; doing it again is safe.
        """
        await self._change_loss(bookie, since_ms, is_delay_waived=True)

    async def record_holds(self, noted: Mapping[BookieId, Down], until_ms: Mapping[BookieId, int]) -> None:
        """Record the end of the hold of each of the ``noted`` losses; losses missing in ``until_ms`` have no hold.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; doing it again is safe.
        """
        for bookie, down in noted.items():
            if down.held_until_ms != (wanted_ms := until_ms.get(bookie, 0)):
                await self._change_loss(bookie, down.since_ms, held_until_ms=wanted_ms)

    async def forget(self, bookie: BookieId) -> None:
        """Remove the record of a returned or removed bookie. Idempotent.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; forgetting again is safe.
        """
        await remove(self._store, f"{self._parent}/{bookie}")

    async def _change_loss(self, bookie: BookieId, since_ms: int, **fields: Any) -> None:
        def changed(known: Down | None) -> Down | None:
            return replace(known, **fields) if known and known.since_ms == since_ms else known

        await self._change(bookie, changed)

    async def _change(self, bookie: BookieId, decide: Callable[[Down | None], Down | None]) -> Down:
        def changed(data: bytes | None) -> bytes | None:
            wanted = decide(None if data is None else _decode(bookie, data))
            return None if wanted is None else encode_record(wanted)

        data = await change(self._store, f"{self._parent}/{bookie}", changed)
        return (None if data is None else _decode(bookie, data)) or Down(0)


def unaudited(noted: Mapping[BookieId, Down]) -> frozenset[BookieId]:
    """Return the bookies whose loss no complete audit has covered.

    Unless they are registered, they are lost, with or without a cookie (R142).
    """
    return frozenset(bookie for bookie, down in noted.items() if not down.audited_ms)


def _with_earliest_time(known: Down | None, now_ms: int) -> Down | None:
    return replace(known, since_ms=min(known.since_ms, now_ms)) if known else Down(now_ms)


def _decode(name: str, data: bytes) -> Down | None:
    try:
        return decode_record(data, Down)
    except UnreadableRecordError as error:
        _log.warning("record of a lost bookie cannot be read", extra={"bookie_id": name, "error": str(error)})
        return None
