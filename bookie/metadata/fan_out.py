"""Several pieces of work at once, of which the first error counts and ends the others."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any


async def all_or_first_error(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Await all of ``works`` at once. On the first error the others are cancelled and awaited, and it is raised alone.

    A ``TaskGroup`` would wrap it in a group, and callers distinguish our errors by their class.
    """
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def first_to_end(*works: Coroutine[Any, Any, None]) -> None:
    """Await until one of ``works`` has ended, and cancel the others; raises what that one raised."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
