"""Waiting for whichever happens first."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Sequence
from typing import Any

from bookie.runtime.tasks import cancel


async def first_of(events: Sequence[Coroutine[Any, Any, Any]], work: Collection[asyncio.Task[Any]] = ()) -> None:
    """Return when one of ``events`` or ``work`` is over.

    The events that have not come are cancelled; tasks of ``work`` live on, and how they ended is not looked at.

    Raises:
        Exception: what an event raised.
    """
    # Not guarded: the tasks end with this call, and what one of them raises goes to the caller.
    waits = [asyncio.create_task(event) for event in events]
    try:
        await asyncio.wait([*waits, *work], return_when=asyncio.FIRST_COMPLETED)
        happened = [wait for wait in waits if wait.done()]
    finally:
        for wait in waits:
            await cancel(wait)
    for wait in happened:
        wait.result()


async def all_over(work: Collection[asyncio.Task[Any]]) -> None:
    """Return when every task is over, however it ended."""
    if work:
        await asyncio.wait(list(work))
