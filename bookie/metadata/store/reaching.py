"""The wait of a service for ZooKeeper at its start (R147).

A service that ended instead would be started again by its supervisor after growing pauses, and would have no page that
shows the reason.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from bookie.metadata.store.outage import Outage
from bookie.model.errors import OutcomeUnknownError, TransientError
from bookie.runtime.clock import Clock

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
