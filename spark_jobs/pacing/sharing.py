"""Count the runs that share the limits, as one connection of a run sees them.

The state of one node changes when a reader joins or leaves. This node is also the small node whose latency is measured,
so there is no additional request. The names are listed only after a change.

If the list cannot be read, the number stays unchanged. A run whose own node is missing counts itself in addition to the
others, and creates the node again. So a run never assumes without proof that it is the only one (R121).
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Final

from bookie.metadata.port import Stat
from bookie.metadata.runs.readers import Readers
from bookie.model.errors import ConflictError, OutcomeUnknownError, PermanentError
from bookie.runtime.clock import Clock

_log = logging.getLogger(__name__)

COUNT_INTERVAL_S: Final = 1.0
"""Longest interval between two counts of the readers, while a connection reads."""
JOIN_S: Final = 2 * COUNT_INTERVAL_S
"""Time between joining and reading with limits, if there are other runs: by then they have counted the readers."""
UNKNOWN: Final = 2
"""Number of runs that is assumed while they cannot be counted: a run must not assume that it is the only one."""
_JOIN_LOOKS: Final = 2
"""The first count joins, and the second one is used."""
_TOLERATED_ERRORS: Final = (ConflictError, PermanentError, OutcomeUnknownError)
_NEVER: Final = (-1, -1)
"""A state that no node can have."""


def readers_sharing_limits(runs: Collection[str], own: str) -> int:
    """Return the number of runs that share the limits: the listed ones, and always this one."""
    return len({*runs, own})


class Sharing:
    """Follows the number of readers. Belongs to one connection."""

    def __init__(self, readers: Readers, run_id: str, known: int) -> None:
        """Only store the arguments.

        Args:
            readers: reads through a store without a pace.
            run_id: id of this run.
            known: the last number that the run counted.
        """
        self._readers = readers
        self._run_id = run_id
        self._seen: tuple[int, int] | None = _NEVER
        """The state of the node when the names were listed; None: there was no node."""
        self.count = max(1, known)
        """Number of runs that share the limits, including this one."""

    @property
    def path(self) -> str:
        """Path of the node whose state changes with the readers."""
        return self._readers.path

    async def follow(self, stat: Stat | None) -> None:
        """Count the readers again if they have changed.

        Args:
            stat: the stat of the node at ``path``, read before this call; None: there is no such node.

        Raises:
            StoreUnavailableError: no answer.
        """
        state = None if stat is None else (stat.czxid, stat.children_version)
        if state == self._seen:
            return
        self._seen = state
        try:
            runs = await self._readers.runs()
            if runs is not None:
                self.count = readers_sharing_limits(runs, self._run_id)
            if runs is None or self._run_id not in runs:
                await self._readers.join()
        except _TOLERATED_ERRORS as error:
            if isinstance(error, OutcomeUnknownError):
                self._seen = _NEVER  # the next count tries again
            _log.warning(
                "runs that read from the same ZooKeeper cannot be counted or joined",
                extra={"path": self.path, "readers": self.count, "error": str(error)},
            )


async def join(readers: Readers, run_id: str, clock: Clock, *, has_rates: bool) -> Sharing:
    """Become a reader, and return the view of the runs that share the limits.

    If there are fixed limits and other runs, this waits until the other runs read less.

    Args:
        readers: reads through the driver's store.
        run_id: id of this run.
        clock: for the wait.
        has_rates: whether the run has limits independent of the latency.

    Raises:
        StoreUnavailableError: no answer.
    """
    sharing = Sharing(readers, run_id, UNKNOWN)
    for _ in range(_JOIN_LOOKS):
        await sharing.follow(await readers.stat())
    if has_rates and sharing.count > 1:
        await clock.sleep(JOIN_S)
    return sharing
