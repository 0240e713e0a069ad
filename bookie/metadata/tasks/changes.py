"""Changes requested by operators: ``/bkheal/changes/<ledgers root>/<number>`` names the operator, time, way and change.

A record is written before its change, so there is no change without a record. It contains only the request; the change
itself may have failed afterwards. If the record cannot be written, nothing is changed.

Numbers increase, so the order does not depend on clocks. About ``CHANGES_MAX`` records are kept; the oldest are removed
first, best effort. A record of a newer release, or a damaged one, is shown as unreadable.

Source: docs/failure-model.md#state-under-bkheal.
"""

from __future__ import annotations

import builtins
import logging
from dataclasses import dataclass
from typing import Final

from bookie.metadata.nodes import child_names, create_with_parents, remove
from bookie.metadata.own_state import claim_state_root, own_path
from bookie.metadata.port import MetadataStore, NodeExistsError, StoreUnavailableError
from bookie.model.errors import OutcomeUnknownError, TransientError
from bookie.model.records import UnreadableRecordError, decode_record, encode_record
from bookie.runtime.clock import Clock

_log = logging.getLogger(__name__)

CHANGES_MAX: Final = 1_000
"""Number of kept records. Older changes are in the auditors' logs if an auditor made them."""
_CHANGES_SLACK: Final = 50
"""Number of records above ``CHANGES_MAX`` at which the oldest are removed, so that not every change removes records."""
_TEXT_MAX: Final = 1_000
_DIGITS: Final = 10
_ATTEMPTS_MAX: Final = 20
"""An attempt fails only if another process has recorded a change in the meantime."""


@dataclass(frozen=True, slots=True)
class OperatorChange:
    """A change requested by an operator."""

    by: str
    """A user and host, or the name of a token."""
    via: str
    """``command``, ``http``, ``grpc`` or ``spark ui``."""
    action: str
    """Such as ``recovery disable``."""
    detail: str
    at_ms: int


class ChangeRecords:
    """The record of changes of the cluster at ``ledgers_root``."""

    def __init__(self, store: MetadataStore, ledgers_root: str, clock: Clock) -> None:
        self._store = store
        self._ledgers_root = ledgers_root
        self._parent = own_path("changes", ledgers_root)
        self._clock = clock

    async def record(self, by: str, via: str, action: str, detail: str = "", *, claims_root: bool = True) -> None:
        """Write a record, durable on return. Call it before the change.

        ``claims_root`` is False if only bkheal's own records are changed, as by a dry run.

        Raises:
            StoreUnavailableError, WriteOutcomeUnknownError: no answer; do not change anything.
            StateRootError: the cluster's other processes keep their state below another root; do not change anything.
        """
        if claims_root:
            await claim_state_root(self._store, self._ledgers_root)
        change = OperatorChange(by[:_TEXT_MAX], via, action, detail[:_TEXT_MAX], self._clock.epoch_ms())
        data = encode_record(change)
        for _ in range(_ATTEMPTS_MAX):
            await self._store.sync(self._parent)
            numbers = await self._numbers()
            path = self._path(numbers[-1] + 1 if numbers else 1)
            try:
                await create_with_parents(self._store, path, data, "/")
            except NodeExistsError:
                continue  # another process has taken the number
            await self._prune(numbers)
            return
        raise StoreUnavailableError("many processes record changes at the same time; try again")

    async def newest(self, limit: int) -> builtins.list[OperatorChange]:
        """Return records, the newest first.

        Raises:
            StoreUnavailableError: no answer.
        """
        newest = (await self._numbers())[-limit:][::-1]
        found = await self._store.get_many_data([self._path(number) for number in newest])
        return [_decode(number, data) for number, data in zip(newest, found, strict=True) if data is not None]

    async def _numbers(self) -> builtins.list[int]:
        names = await child_names(self._store, self._parent)
        return sorted(int(name) for name in names if name.isascii() and name.isdigit())

    def _path(self, number: int) -> str:
        return f"{self._parent}/{number:0{_DIGITS}d}"

    async def _prune(self, numbers: builtins.list[int]) -> None:
        if len(numbers) < CHANGES_MAX + _CHANGES_SLACK:
            return
        try:
            for number in numbers[: len(numbers) + 1 - CHANGES_MAX]:
                await remove(self._store, self._path(number))
        except (TransientError, OutcomeUnknownError) as error:
            _log.info("old records of changes could not be removed yet", extra={"error": str(error)})


def _decode(number: int, data: bytes) -> OperatorChange:
    try:
        return decode_record(data, OperatorChange)
    except UnreadableRecordError as error:
        _log.warning("record of a change cannot be read", extra={"number": number, "error": str(error)})
        return OperatorChange("", "", "unreadable", "", 0)
