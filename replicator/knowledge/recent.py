"""Recent answers of the cluster, cached for all turns of this process.

Most repairs need the same facts: which bookies are registered, whether repair is disabled, which disks a bookie has.
All turns use a cached answer for a limited time (``BOOKIES_AGE_S``, ``SWITCH_AGE_S``), or until a watch of the worker
reports a change. So the number of these requests grows with time and not with the number of ledgers.

An outdated answer must not change what happens to data. For each fact there is a separate argument:

* Registered bookies. Metadata must be read before bookies (R2): an answer older than the metadata may lack a bookie
  that joined since then. So a cached answer is used only if it contains every member that the task does not name;
  otherwise the bookies are listed again. A member that the task names may have returned since then: the installation
  reads its registration again (R5), and those of the targets. If a member has disappeared since then, the auditor
  notices it, and its mark changes the task (R13). The registrations of members that the task names are compared right
  before the task is deleted (I18, R136).
* The switch (S7). A read without ``sync`` is as new as the state of this session's server, and the same server sends
  the watch event before it answers a later read. So with a watch, a cached answer is at most one notification older
  than a new read. The switch is read again after a second in any case.
* Whether a target lists entries. The cached answer saves a request before a small copy. The list after the copy is the
  proof, so a wrong answer costs one unused copy.
* The disks of a bookie. Copies carry the incarnation, so a bookie with other disks refuses them, and the transaction of
  the installation checks the recorded incarnation again (R30).

``absence`` caches its facts in the same way.

R rules are defined in docs/failure-model.md, S and I rules in docs/invariants.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Final, Generic, TypeVar

from bookie.metadata.bookies.registration import Bookies, Registration, Registrations, ServiceInfo
from bookie.metadata.tasks.switches import RecoverySwitches
from bookie.model.ids import BookieId
from bookie.runtime.clock import Clock

BOOKIES_AGE_S: Final = 2.0
"""The longest time for which turns use a cached list of bookies, or the cached registration of a bookie."""
SWITCH_AGE_S: Final = 1.0
"""The same for the switch. If there is no watch, copies may still start for this long after ``disable`` (S7)."""

T = TypeVar("T")


class Shared(Generic[T]):
    """A value that is read once for all callers and cached for ``age_s``."""

    def __init__(self, read: Callable[[], Awaitable[T]], clock: Clock, age_s: float) -> None:
        self._read = read
        self._clock = clock
        self._age_s = age_s
        self._kept: tuple[float, T] | None = None
        self._generation = 0
        self._lock = asyncio.Lock()
        self._begun = 0
        """The number of reads that were started."""
        self._kept_read = 0
        """The number of the read that returned the cached value. A waiting caller accepts a read started after its
        call."""

    def forget(self) -> None:
        """Make the next caller read again. The result of a read in flight is not cached."""
        self._kept = None
        self._generation += 1

    def kept(self) -> T | None:
        """Return the cached value; None if there is none or it is too old."""
        if self._kept is None or self._clock.monotonic_s() - self._kept[0] >= self._age_s:
            return None
        return self._kept[1]

    async def get(self) -> T:
        """Return the cached value, or read it if it is older than ``age_s``."""
        value = self.kept()
        return await self.fresh() if value is None else value

    async def fresh(self) -> T:
        """Return the value of a read that started after this call. Waiting callers share a read."""
        wanted = self._begun + 1
        async with self._lock:
            if self._kept is not None and self._kept_read >= wanted:
                return self._kept[1]
            self._begun += 1
            number, generation, started_s = self._begun, self._generation, self._clock.monotonic_s()
            value = await self._read()
            if generation == self._generation:
                self._kept, self._kept_read = (started_s, value), number
            return value


class Recent:
    """The recent answers, for all turns of one process."""

    def __init__(self, registrations: Registrations, switches: RecoverySwitches, clock: Clock) -> None:
        self._registrations = registrations
        self._clock = clock
        self._bookies = Shared(registrations.list, clock, BOOKIES_AGE_S)
        self._disabled = Shared(switches.is_disabled, clock, SWITCH_AGE_S)
        self._of: dict[BookieId, Shared[Registration | None]] = {}
        self._listed_s: dict[BookieId, float] = {}

    async def bookies(self, expected: Collection[BookieId] = ()) -> Bookies:
        """Return the registered bookies. A cached list is used only if it contains all of ``expected`` (R2).

        Raises:
            NotAClusterError: see ``Registrations.list``.
            StoreUnavailableError: the store does not answer.
        """
        known = self._bookies.kept()
        if known is not None and known.registered.issuperset(expected):
            return known
        return await self._bookies.fresh()

    async def list_bookies(self) -> Bookies:
        """Return the registered bookies, read after this call.

        Raises:
            NotAClusterError: see ``Registrations.list``.
            StoreUnavailableError: the store does not answer.
        """
        return await self._bookies.fresh()

    async def is_disabled(self) -> bool:
        """Whether auto-recovery is disabled cluster-wide (S7).

        Raises:
            StoreUnavailableError: the store does not answer.
        """
        return await self._disabled.get()

    def cached_is_disabled(self) -> bool | None:
        """Return the cached answer of ``is_disabled``; None if a request would be needed."""
        return self._disabled.kept()

    async def incarnation(self, bookie: BookieId) -> str | None:
        """Return the registered incarnation of a bookie; None if it is not registered.

        Raises:
            StoreUnavailableError: the store does not answer.
        """
        info = await self.service_info(bookie)
        return None if info is None else info.incarnation

    async def service_info(self, bookie: BookieId) -> ServiceInfo | None:
        """Return the service information that a bookie registered; None if it is not registered.

        Raises:
            StoreUnavailableError: the store does not answer.
        """
        found = await self.registration(bookie)
        return None if found is None else found.info

    async def registration(self, bookie: BookieId) -> Registration | None:
        """Return the registration of a bookie; None if it is not registered.

        Raises:
            StoreUnavailableError: the store does not answer.
        """
        read = partial(self._registrations.registration, bookie)
        return await self._of.setdefault(bookie, Shared(read, self._clock, BOOKIES_AGE_S)).get()

    def note_another_registration(self, bookie: BookieId) -> None:
        """Forget the registration of a bookie, because it was found to have another one."""
        self._of.pop(bookie, None)

    def note_listing(self, bookie: BookieId, *, is_answered: bool) -> None:
        """Record whether a bookie answered a request for its list of entries."""
        if is_answered:
            self._listed_s[bookie] = self._clock.monotonic_s()
        else:
            self._listed_s.pop(bookie, None)

    def has_listed(self, bookie: BookieId) -> bool:
        """Whether a bookie recently listed entries, and did not fail to do so afterwards."""
        listed_s = self._listed_s.get(bookie)
        return listed_s is not None and self._clock.monotonic_s() - listed_s < BOOKIES_AGE_S

    def note_bookies_changed(self) -> None:
        """Forget the bookies and their registrations, because a registration changed."""
        self._bookies.forget()
        self._of.clear()
        self._listed_s.clear()

    def note_switched(self) -> None:
        """Forget the state of the switch, because it may have changed."""
        self._disabled.forget()

    def forget(self) -> None:
        """Forget everything, because the session ended or was interrupted."""
        self.note_bookies_changed()
        self.note_switched()
