"""Follow the cluster's limits on copying, and apply this process's share.

While limits are set, each copying worker has an ephemeral node, and its share is the limit divided by the number of
nodes. A new worker creates its node, and copies only after two seconds. By then the others have reduced their shares,
because they read the nodes again within a second of a change. If a worker has not copied for ten seconds, it deletes
its node, and the others' shares grow. A worker with nothing to copy sends no requests.

If the store does not answer, the share stays unchanged: if the session is lost, the worker stops copying anyway. If the
limits cannot be decoded, the last known limits apply. A process that knows none copies at 1 MiB/s, because a strict
limit may be set. It also does so, or copies more slowly if the known limit is lower, while the store refuses to let it
read the limits or take a share. Otherwise its copies would wait, with the locks of their ledgers, until an operator
corrects the permissions.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Final

from bookie.metadata.tasks.copy_limits import CopyLimits, CopyLimitsStore, SeenLimits
from bookie.model.errors import OutcomeUnknownError, PermanentError, TransientError
from bookie.model.records import UnreadableRecordError
from bookie.runtime.retry import GrowingPause
from bookie.runtime.waiting import first_of
from replicator.copying.pace import UNLIMITED, CopyPace, worker_share
from replicator.ports import RepairPorts

_log = logging.getLogger(__name__)

REFRESH_S: Final = 1.0
"""The time between two reads of the workers' nodes: at most one per second, however often workers join and leave."""
JOIN_S: Final = 2 * REFRESH_S
"""The time between the creation of this worker's node and its first copy."""
IDLE_S: Final = 10.0
"""The time without a copy after which a worker deletes its node."""
STORE_PAUSE_S: Final = 5.0
"""The pause after the store did not answer, and the first one after it refused a request."""
REFUSED_PAUSE_S_MAX: Final = 60.0
"""The longest pause after the store refused a request. Each one is twice as long as the one before."""
UNREADABLE: Final = CopyLimits(bytes_per_second=1 << 20)
"""The limits to assume if the stored ones cannot be decoded and none are known."""


class SharedLimits:
    """Sets the share of a ``CopyPace``, which stays closed until the limits are known. Call ``follow`` once."""

    def __init__(self, limits: CopyLimitsStore, ports: RepairPorts, pace: CopyPace, owner: str) -> None:
        self._limits = limits
        self._ports = ports
        self._pace = pace
        self._owner = owner
        self._last: CopyLimits | None = None
        self._joined = ""
        """The name of this worker's node; empty if it has none."""
        self._refusals = GrowingPause(STORE_PAUSE_S, REFUSED_PAUSE_S_MAX)
        self.problem = ""
        """Why the store does not let this process follow the limits; empty if it does. Safe to read in any thread."""
        pace.close()

    async def follow(self) -> None:
        """Follow the limits until cancelled."""
        while True:
            try:
                await self._step(await self._read())
            except (TransientError, OutcomeUnknownError) as error:
                _log.error("limits on copying cannot be read, trying again", extra={"error": str(error)})
                await self._ports.clock.sleep(STORE_PAUSE_S)
            except PermanentError as error:
                pause_s, self.problem = self._refusals.next_pause_s(), str(error)
                extra = {"error": self.problem, "in_s": pause_s}
                _log.error("the metadata store refused the limits on copying, trying again", extra=extra)
                self._pace.set_share_if_closed(worker_share(_strict(self._last), 1))
                await self._ports.clock.sleep(pause_s)

    async def _read(self) -> SeenLimits:
        try:
            seen = await self._limits.read()
        except UnreadableRecordError as error:
            _log.error("limits on copying cannot be decoded", extra={"path": self._limits.path, "error": str(error)})
            seen = SeenLimits(self._last or UNREADABLE, await self._limits.stat())
        self._last = seen.limits
        return seen

    async def _step(self, seen: SeenLimits) -> None:
        """Apply the limits, and wait until they must be read again."""
        if seen.limits is None:
            self._pace.set_share(UNLIMITED)
            await self._leave()
            self._note_followed()
            await self._limits.wait_changed(seen.stat)
            return
        if not self._joined:
            self._pace.close()
            await first_of([self._limits.wait_changed(seen.stat), self._pace.wanted.wait()])
            if self._pace.wanted.is_set():
                await self._join()
            return
        await self._share(seen)

    async def _share(self, seen: SeenLimits) -> None:
        assert seen.limits is not None
        workers = await self._limits.workers()
        if workers is None or self._joined not in workers.names:  # the session of its node has ended
            self._joined = ""
            return
        self._pace.set_share(worker_share(seen.limits, len(workers.names)))
        self._note_followed()
        self._pace.wanted.clear()
        await self._ports.clock.sleep(REFRESH_S)
        await first_of(
            [
                self._limits.wait_changed(seen.stat),
                self._limits.wait_workers_changed(workers),
                self._ports.clock.sleep(IDLE_S),
            ]
        )
        if not self._pace.is_used:
            self._pace.close()
            await self._leave()

    def _note_followed(self) -> None:
        self.problem = ""
        self._refusals.reset()

    async def _join(self) -> None:
        name = f"{self._owner}-{self._ports.store.session.session_id:x}"
        await self._limits.join(name)
        self._joined = name
        await self._ports.clock.sleep(JOIN_S)

    async def _leave(self) -> None:
        """Delete this worker's node. If that fails, the node stays known, so a later step uses or deletes it."""
        if self._joined:
            await self._limits.leave(self._joined)
            self._joined = ""


def _strict(limits: CopyLimits | None) -> CopyLimits:
    """Return ``limits``, but at most the bytes per second of ``UNREADABLE``."""
    if limits is None:
        return UNREADABLE
    most = UNREADABLE.bytes_per_second
    return replace(limits, bytes_per_second=min(limits.bytes_per_second or most, most))
