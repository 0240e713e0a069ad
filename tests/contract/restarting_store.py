"""A store that restarts before each operation, because the contract must hold across every restart."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from bookie.storage.store import LedgerStorage

_ENDS = ("close", "abort")


@dataclass
class RestartingStore:
    """Takes the place of a ``LedgerStorage``. Concurrent operations share one store.

    Attributes:
        engine: the current store.
        restart: closes the store, or aborts it as a crash would, and returns the next one.
        restarts: the number of restarts.
    """

    engine: LedgerStorage
    restart: Callable[[LedgerStorage, bool], Awaitable[LedgerStorage]]
    restarts: int = 0
    _running: int = 0
    _is_closed: bool = False
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.engine, name)
        if not inspect.iscoroutinefunction(found):
            return found

        async def call(*arguments: Any, **named: Any) -> Any:
            async with self._turn:
                if name in _ENDS:
                    self._is_closed = True
                elif not self._running and not self._is_closed:
                    is_marked = name == "collect" and self.engine.is_marked(*arguments)
                    self.restarts += 1
                    self.engine = await self.restart(self.engine, self.restarts % 2 == 0)
                    if is_marked:  # a mark ends with its process, after which the collector makes a new one
                        arguments = (arguments[0], self.engine.mark(arguments[0]))
                self._running += 1
            try:
                return await getattr(self.engine, name)(*arguments, **named)
            finally:
                self._running -= 1

        return call
