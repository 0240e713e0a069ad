"""Unloading of topics through Pulsar's admin API while a command waits for a drain.

What to ask for is decided by ``auditor.safety.unloading``. A failure ends nothing at once, except a login that is
refused: other topics are asked for, and replicators continue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Final

from auditor.cli.cluster.admin_requests import AdminClient, AdminLoginError
from auditor.safety.unloading import AT_ONCE, Attempts, after, due, hopeless, kept, unload_path
from bookie.model.errors import BkhealError
from bookie.runtime.human import printable

if TYPE_CHECKING:
    from auditor.safety.holdings import Holdings
    from bookie.runtime.clock import Clock

REQUEST_S: Final = 30.0
"""For the unloading of one topic: a broker waits for the writes under way, and closes cursors."""
NOTES_MAX: Final = 10
"""Failures that are printed when they happen."""


class TopicUnloading:
    """The requests of one command."""

    def __init__(self, admin: AdminClient, clock: Clock, note: Callable[[str], None]) -> None:
        """``note`` receives a sentence for people, at most ``NOTES_MAX`` + 1 times."""
        self._admin = admin
        self._clock = clock
        self._note = note
        self._attempts: dict[str, Attempts] = {}
        self._noted: set[str] = set()
        self._refused: AdminLoginError | None = None
        self.unloaded = 0
        """Requests that succeeded."""

    async def look(self, open_topics: AbstractSet[str], writable: AbstractSet[str], within_s: float | None) -> None:
        """Unload what is due; return after ``within_s`` at the latest, and after a bounded time in any case.

        Nothing is unloaded while one of the bookies is writable: the next ledger of a topic could be on it again.
        """
        self._attempts = kept(self._attempts, open_topics, self._clock.monotonic_s())
        topics = due(open_topics, self._attempts, self._clock.monotonic_s())
        if not topics or self._refused is not None:
            return
        if writable:
            self._say(f"no topic is unloaded while a bookie is writable: {', '.join(sorted(writable))}")
            return
        turns = asyncio.Semaphore(AT_ONCE)
        try:
            async with asyncio.timeout(within_s), asyncio.TaskGroup() as group:
                for topic in topics:
                    group.create_task(self._unload(topic, turns))
        except TimeoutError:
            return  # the command's own time is up

    def failure(self, holdings: Holdings) -> BkhealError | None:
        """Return why waiting any longer is useless; None: it is not."""
        if self._refused is not None:
            return self._refused
        if len(holdings.unclosed) < len(holdings.ledgers):
            return None  # replicators have work
        return hopeless(holdings.open_topics, self._attempts, self._clock.monotonic_s())

    async def _unload(self, topic: str, turns: asyncio.Semaphore) -> None:
        async with turns:
            if self._refused is not None:
                return
            before, asked_s = self._attempts.get(topic), self._clock.monotonic_s()
            self._attempts[topic] = after(before, asked_s, None)  # a request that is cut short counts
            error = await self._asked(topic)
            self._attempts[topic] = after(before, asked_s, error)
            if error is None:
                self.unloaded += 1
                return
            if isinstance(error, AdminLoginError):
                self._refused = error
            else:
                self._say(f"{error}; the drain continues")

    async def _asked(self, topic: str) -> BkhealError | None:
        what = f"topic {printable(topic)} is not unloaded"
        try:
            answer = await self._admin.ask("PUT", unload_path(topic), what)
        except BkhealError as error:
            return error
        return None if answer.status == 204 else answer.error(what)

    def _say(self, text: str) -> None:
        if text in self._noted or len(self._noted) > NOTES_MAX:
            return
        self._noted.add(text)
        self._note(text if len(self._noted) <= NOTES_MAX else "more topics are not unloaded, for reasons not shown")
