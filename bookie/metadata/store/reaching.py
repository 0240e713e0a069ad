"""The wait of a service for ZooKeeper at its start (R147).

A service that ended instead would be started again by its supervisor after growing pauses, and would have no page that
shows the reason.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from bookie.metadata.store.outage import Outage, one_outage
from bookie.model.errors import OutcomeUnknownError, TransientError
from bookie.runtime.clock import Clock
from bookie.runtime.tasks import cancel
from bookie.runtime.waiting import first_of

_log = logging.getLogger(__name__)

RETRY_S: Final = 2.0
"""Pause between two attempts, each of which has a deadline of its own."""

T = TypeVar("T")


async def until_reached(connect: Callable[[], Awaitable[T]], clock: Clock) -> T:
    """Call ``connect`` until the store answers, however long this takes, and return its result. It may be cancelled.

    Only failures that end by themselves are retried. The first one is logged, and then some of them.

    Raises:
        BkhealError: an error that a person must correct, such as a refused login or a root without a cluster.
    """
    outage = Outage()
    with one_outage():
        while True:
            try:
                reached = await connect()
            except (TransientError, OutcomeUnknownError) as error:
                since_s = outage.failed(str(error), clock.monotonic_s())
                if since_s is not None:
                    fields = {"reason": str(error), "since_s": round(since_s)}
                    _log.warning("metadata store is not available, trying again", extra=fields)
                await clock.sleep(RETRY_S)
                continue
            if (lasted_s := outage.over(clock.monotonic_s())) is not None:
                _log.warning("metadata store is available", extra={"after_s": round(lasted_s)})
            return reached


async def reached_unless_stopped(
    connect: Callable[[], Awaitable[T]], clock: Clock, stop: asyncio.Event, *, is_patient: bool = True
) -> T | None:
    """Return the result of ``connect``, or None if ``stop`` is set first; ``connect`` is then cancelled.

    Args:
        connect: as for ``until_reached``.
        clock: for the pauses.
        stop: set to end the wait.
        is_patient: whether to wait for the store as ``until_reached`` does; if not, ``connect`` is called once.

    Raises:
        BkhealError: a person must correct something; without patience, also that the store does not answer.
    """

    async def reach() -> T:
        return await (until_reached(connect, clock) if is_patient else connect())

    reaching = asyncio.create_task(reach(), name="metadata store")
    try:
        await first_of([stop.wait()], [reaching])
        return reaching.result() if reaching.done() else None
    finally:
        await cancel(reaching)
