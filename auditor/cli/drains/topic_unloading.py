"""Unloads topics through Pulsar's admin API while a command waits for a drain.

``auditor.safety.unloading`` chooses the requests. Only a refused login ends the unloading at once; after other
failures, it continues with other topics, and replicators continue. A broker answers 401 also to a role that may log in
but lacks the permission for a topic, so after such an answer a request that needs no permission is sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Final

from auditor.cli.admin_requests import AdminClient, AdminLoginError, AdminRefusedError
from auditor.safety.unloading import AT_ONCE, Attempts, after, due, kept, unload_path, unloading_failure
from bookie.model.errors import BkhealError
from bookie.runtime.human import printable

if TYPE_CHECKING:
    from auditor.safety.holdings import HeldLedgers
    from bookie.runtime.clock import Clock

REQUEST_S: Final = 30.0
"""Deadline for the unloading of one topic: a broker waits for the writes under way, and closes cursors."""
NOTES_MAX: Final = 10
"""Largest number of failures that are printed."""
_NOTHING_BEGUN: Final = "nothing was begun"
_CLUSTERS: Final = "/admin/v2/clusters"
"""The list of clusters: a broker of Pulsar 4.0 sends it to each role that may log in, without a further permission, and
no other server answers with a list here."""


async def check_answers(admin: AdminClient) -> None:
    """Check that the admin API answers and accepts the login. It does not check the permission for a topic (R75).

    Args:
        admin: Pulsar's.

    Raises:
        AdminLoginError, AdminRefusedError: it is another server, the token is wrong, or the request was refused.
        AdminUnavailableError, AdminOutcomeUnknownError: no answer within ``REQUEST_S``.
    """
    answer = await admin.ask("GET", _CLUSTERS, _NOTHING_BEGUN)
    if answer.status != 200 or not answer.is_list:
        raise answer.error(_NOTHING_BEGUN)


class TopicUnloading:
    """The requests of one command."""

    def __init__(self, admin: AdminClient, clock: Clock, note: Callable[[str], None]) -> None:
        """Store the arguments; ``note`` receives sentences for the operator, at most ``NOTES_MAX`` + 1 of them."""
        self._admin = admin
        self._clock = clock
        self._note = note
        self._attempts: dict[str, Attempts] = {}
        self._noted: set[str] = set()
        self._refused: AdminLoginError | None = None
        self.unloaded = 0
        """Number of successful requests."""

    async def unload_due(
        self, open_topics: AbstractSet[str], writable: AbstractSet[str], within_s: float | None
    ) -> None:
        """Unload the topics that are due. Return after ``within_s`` at the latest, and always after a bounded time.

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
            return  # the command's own deadline has passed

    def failure(self, holdings: HeldLedgers) -> BkhealError | None:
        """Return why further waiting is useless; None: it is not."""
        if self._refused is not None:
            return self._refused
        if len(holdings.unclosed) < len(holdings.ledgers):
            return None  # replicators still move ledgers
        return unloading_failure(holdings.open_topics, self._attempts, self._clock.monotonic_s())

    async def _unload(self, topic: str, turns: asyncio.Semaphore) -> None:
        async with turns:
            if self._refused is not None:
                return
            before, asked_s = self._attempts.get(topic), self._clock.monotonic_s()
            self._attempts[topic] = after(before, asked_s, None)  # set now, so that an interrupted request counts
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
            error = None if answer.status == 204 else answer.error(what)
            if isinstance(error, AdminLoginError) and await self._is_login_accepted():
                return AdminRefusedError(str(error))
        except BkhealError as failed:
            return failed
        return error

    async def _is_login_accepted(self) -> bool:
        try:
            await check_answers(self._admin)
        except AdminLoginError:
            return False
        return True

    def _say(self, text: str) -> None:
        if text in self._noted or len(self._noted) > NOTES_MAX:
            return
        self._noted.add(text)
        self._note(text if len(self._noted) <= NOTES_MAX else "more topics are not unloaded, for reasons not shown")
