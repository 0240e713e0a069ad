"""Recent answers of the cluster to this process, shared by all its turns.

Most repairs ask the same questions: which bookies are registered, is repair disabled, which disks does a bookie have.
One answer serves every turn for a bounded time (``BOOKIES_AGE_S``, ``SWITCH_AGE_S``), or until a watch of the worker
reports a change. So the number of these requests grows with time and not with the number of ledgers.

An outdated answer must not change what happens to data. Each question has its own argument:

* Registered bookies. Metadata first, bookies second (R2): an answer older than the metadata may lack a bookie that
  joined since. So a kept answer is used only if it contains every member not named by the task; otherwise the bookies
  are listed again. A member named by the task may have returned since: the installation reads its registration again
  (R5), and those of the targets. A member that disappeared since is found by the auditor, whose mark changes the task
  (R13). The registrations of members named by the task are compared right before the task is deleted (I18, R136).
* The switch (S7). A read without ``sync`` is as new as the state of this session's server, and the same server sends
  the watch event before it answers a later read. So an answer under a watch is at most one notification older than a
  new read. The switch is read again after a second in any case.
* Whether a target lists entries. The kept answer saves a request before a small copy. The list after the copy is the
  proof, so a wrong answer costs one unused copy.
* The disks of a bookie. Copies carry the incarnation, so other disks refuse them, and the transaction of the
  installation checks the recorded incarnation again (R30).

``absence`` keeps its facts in the same way.

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
"""Longest time for which a list of bookies, or a bookie's disks, are used by further turns."""
SWITCH_AGE_S: Final = 1.0
"""The same for the switch. Without a watch, copies may start for this long after ``disable`` (S7)."""

T = TypeVar("T")


class Shared(Generic[T]):
    """One value, read for all callers and kept for a time."""

    def __init__(self, read: Callable[[], Awaitable[T]], clock: Clock, age_s: float) -> None:
        self._read = read
        self._clock = clock
        self._age_s = age_s
        self._kept: tuple[float, T] | None = None
        self._generation = 0
        self._lock = asyncio.Lock()
        self._begun = 0
        """Number of reads begun."""
        self._kept_read = 0
        """The number of the read of the kept value; a waiting caller accepts one begun after its call."""

    def forget(self) -> None:
        """Let the next caller read again; a read under way is not kept."""
        self._kept = None
        self._generation += 1

    def kept(self) -> T | None:
        """Return the kept value; None if it is too old."""
        if self._kept is None or self._clock.monotonic_s() - self._kept[0] >= self._age_s:
            return None
        return self._kept[1]

    async def get(self) -> T:
        """Return the value, at most ``age_s`` old."""
        value = self.kept()
        return await self.fresh() if value is None else value

    async def fresh(self) -> T:
        """Return the value of a read begun after this call. Waiting callers share reads."""
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
        """Return the registered bookies. A kept list is used only if it contains all of ``expected`` (R2).

        Raises:
            NotAClusterError: see ``Registrations.list``.
            StoreUnavailableError: no answer.
        """
        known = self._bookies.kept()
        if known is not None and known.registered.issuperset(expected):
            return known
        return await self._bookies.fresh()

    async def list_bookies(self) -> Bookies:
        """Return the registered bookies, no older than this call.

        Raises:
            NotAClusterError: see ``Registrations.list``.
            StoreUnavailableError: no answer.
        """
        return await self._bookies.fresh()

    async def is_disabled(self) -> bool:
        """Whether auto-recovery is disabled cluster-wide (S7).

        Raises:
            StoreUnavailableError: no answer.
        """
        return await self._disabled.get()

    def kept_switch(self) -> bool | None:
        """Return the kept answer of ``is_disabled``; None if a request would be needed."""
        return self._disabled.kept()

    async def incarnation(self, bookie: BookieId) -> str | None:
        """Return the registered incarnation of a bookie; None if it is not registered.

        Raises:
            StoreUnavailableError: no answer.
        """
        info = await self.service_info(bookie)
        return None if info is None else info.incarnation

    async def service_info(self, bookie: BookieId) -> ServiceInfo | None:
        """Return the registered information of a bookie; None if it is not registered.

        Raises:
            StoreUnavailableError: no answer.
        """
        found = await self.registration(bookie)
        return None if found is None else found.info

    async def registration(self, bookie: BookieId) -> Registration | None:
        """Return the registration of a bookie; None if it is not registered.

        Raises:
            StoreUnavailableError: no answer.
        """
        read = partial(self._registrations.registration, bookie)
        return await self._of.setdefault(bookie, Shared(read, self._clock, BOOKIES_AGE_S)).get()

    def note_another_registration(self, bookie: BookieId) -> None:
        """Forget the registration of a bookie: it has another one."""
        self._of.pop(bookie, None)

    def note_listing(self, bookie: BookieId, *, is_answered: bool) -> None:
        """Record whether a bookie answered a request for its list of entries."""
        if is_answered:
            self._listed_s[bookie] = self._clock.monotonic_s()
        else:
            self._listed_s.pop(bookie, None)

    def has_listed(self, bookie: BookieId) -> bool:
        """Whether a bookie listed entries a short time ago, and answered each such request since."""
        listed_s = self._listed_s.get(bookie)
        return listed_s is not None and self._clock.monotonic_s() - listed_s < BOOKIES_AGE_S

    def note_bookies_changed(self) -> None:
        """Forget the bookies and their disks: a registration changed."""
        self._bookies.forget()
        self._of.clear()
        self._listed_s.clear()

    def note_switched(self) -> None:
        """Forget the switch."""
        self._disabled.forget()

    def forget(self) -> None:
        """Forget everything: the session ended, or was interrupted."""
        self.note_bookies_changed()
        self.note_switched()
