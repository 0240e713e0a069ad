"""Wait for a state of another process by polling, with a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from bookie.embedded.process import pause_s
from tests.apache.driver import JavaError
from tests.deadlines import STATE_S

_AGAIN_S: Final = 0.1

T = TypeVar("T")


async def until(
    look: Callable[[], Awaitable[T]], holds: Callable[[T], bool], what: str, deadline_s: float = STATE_S
) -> T:
    """Call ``look`` until its result ``holds``, and return this result; ``what`` names the state in a failure.

    If Apache's client fails, the state is read again: a bookie answers with a read error if it receives a read of a
    ledger while it deletes this ledger.
    """
    seen: list[T | JavaError] = []
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    try:
        async with asyncio.timeout(deadline_s):
            while True:
                try:
                    found = await look()
                except JavaError as error:
                    seen[:] = [error]
                else:
                    seen[:] = [found]
                    if holds(found):
                        return found
                await asyncio.sleep(max(_AGAIN_S, pause_s(loop.time() - began_s)))
    except TimeoutError:
        raise AssertionError(f"not within {deadline_s:g} s: {what}; last seen: {seen or 'nothing'}") from None
