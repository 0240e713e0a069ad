"""New ledger ids, from counters shared by all clients of the cluster (docs/formats.md#ledger-ids).

An id is the number of an ephemeral sequential node, which is deleted immediately. Ids below 2147483647 come from one
counter. Then, permanently, the high 32 bits come from a ``HOB-`` node, and the low ones from its counter. No number is
assigned twice, because ZooKeeper counts creates. A lost answer costs only a number, and its node ends with the session.
"""

from __future__ import annotations

import logging
from typing import Final

from bookie.metadata.cluster import Cluster
from bookie.metadata.layout import IDGEN, IDGEN_LONG, SHORT_ID_END
from bookie.metadata.nodes import WRITE_ATTEMPTS_MAX, ensure_path, parent_of
from bookie.metadata.port import (
    BadVersionError,
    Children,
    MetadataStore,
    NoNodeError,
    NotEmptyError,
    StoreUnavailableError,
    WriteOutcomeUnknownError,
)
from bookie.model.errors import PermanentError
from bookie.model.ids import LedgerId, ledger_id

_log = logging.getLogger(__name__)

_PREFIX: Final = "ID-"
_HIGH_PREFIX: Final = "HOB-"
_HIGH_NODES_KEPT: Final = 3
"""Kept nodes with high bits; older ones are deleted, as by Apache's generator."""
_FIRST_HIGH: Final = 1


class IdsExhaustedError(PermanentError):
    """The cluster has no ledger id left."""


class IdGenerator:
    """Assigns ledger ids of one cluster. Any number of generators may run at the same time."""

    def __init__(self, store: MetadataStore, cluster: Cluster) -> None:
        self._store = store
        self._root = cluster.root
        self._short = f"{cluster.root}/{IDGEN}/{_PREFIX}"
        self._long = f"{cluster.root}/{IDGEN_LONG}"

    async def next_id(self) -> LedgerId:
        """Return an id that was never assigned before.

        Raises:
            IdsExhaustedError: there is none left.
            NoNodeError: the cluster's root was deleted.
            StoreUnavailableError, WriteOutcomeUnknownError: see ``MetadataStore.create``; at worst a number is lost.
        """
        if await self._store.stat(self._long) is None:
            number = await self._number(self._short)
            if number is not None:
                return LedgerId(number)
            await ensure_path(self._store, self._long, self._root)
        return await self._next_long_id()

    async def _next_long_id(self) -> LedgerId:
        for _ in range(WRITE_ATTEMPTS_MAX):
            high = max(self._high_numbers(await self._store.children(self._long)), default=_FIRST_HIGH)
            for candidate in (high, high + 1):  # the second one if the low bits of the first are used up
                if candidate > SHORT_ID_END:
                    raise IdsExhaustedError(f"the cluster at {self._root} has given out every ledger id")
                low = await self._number(f"{self._high_path(candidate)}/{_PREFIX}")
                if low is not None:
                    await self._prune()
                    return ledger_id((candidate << 32) | low)
        raise IdsExhaustedError(
            f"no ledger id under {self._long}: its counters are exhausted faster than they can be replaced"
        )

    async def _number(self, prefix: str) -> int | None:
        """Next number of one counter, or None at its end."""
        error: Exception | None = None
        for _ in range(WRITE_ATTEMPTS_MAX):
            try:
                path = await self._store.create(prefix, is_ephemeral=True, is_sequential=True)
            except NoNodeError as missing:
                error = missing
                await ensure_path(self._store, parent_of(prefix), self._root)
            except WriteOutcomeUnknownError as unknown:
                error = unknown
            else:
                await self._forget(path)
                number = int(path[len(prefix) :])
                return number if 0 <= number < SHORT_ID_END else None
        assert error is not None
        raise error

    async def _forget(self, path: str) -> None:
        try:
            await self._store.delete(path)
        except (NoNodeError, StoreUnavailableError, WriteOutcomeUnknownError) as error:
            _log.debug("id node is left to its session", extra={"path": path, "error": str(error)})

    async def _prune(self) -> None:
        highs = sorted(self._high_numbers(await self._store.children(self._long)))
        for high in highs[:-_HIGH_NODES_KEPT]:
            try:
                await self._store.delete(self._high_path(high), 0)
            except (NoNodeError, NotEmptyError, BadVersionError):
                continue

    def _high_path(self, high: int) -> str:
        return f"{self._long}/{_HIGH_PREFIX}{high:010d}"

    def _high_numbers(self, listing: Children) -> list[int]:
        numbers = [name.removeprefix(_HIGH_PREFIX) for name in listing.names if name.startswith(_HIGH_PREFIX)]
        return [int(number) for number in numbers if number.isascii() and number.isdigit()]
