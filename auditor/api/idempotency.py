"""Idempotency keys: a request that is repeated after a lost answer does not start a second run.

A client chooses a key for each intent (``Idempotency-Key``, as in the IETF draft of this name). Memory is bounded: a
key is valid for a day, and only the newest keys are kept. The keys are in this process's memory, so after a change of
leader a repeated request is a new one; the lock of its kind then still allows one run at a time.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from bookie.model.errors import ConflictError, OutcomeUnknownError, PermanentError
from bookie.runtime.clock import Clock

KEYS_MAX: Final = 1_000
KEPT_S: Final = 24 * 3600.0
KEY_PATTERN: Final = r"[!-~]{1,255}"
"""The form of a key: printable ASCII without blanks."""
_KEY: Final = re.compile(KEY_PATTERN)


class InvalidKeyError(PermanentError):
    """The text is not an idempotency key."""


class KeyReusedError(ConflictError):
    """The key was used for another request."""


class FirstRequestAbortedError(OutcomeUnknownError):
    """The work for this key was stopped before its answer."""


@dataclass(slots=True)
class _Intent:
    asked: str
    since_s: float
    run_id: asyncio.Future[str]


class IdempotentRuns:
    """The runs that were begun for each key."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._intents: OrderedDict[tuple[str, str], _Intent] = OrderedDict()
        self._beginning: set[asyncio.Task[None]] = set()
        """Strong references to the tasks, because the event loop keeps only weak ones."""

    async def once(self, client: str, key: str, asked: str, begin: Callable[[], Awaitable[str]]) -> tuple[str, bool]:
        """Begin a run, or find the run that the same request has begun.

        If the caller is cancelled, the run still begins, and the caller's next request finds it.

        Args:
            client: keys of different clients are independent of each other.
            key: chosen by the client.
            asked: the request as text, for the comparison.
            begin: begins the run and returns its id. Its error is not kept, so the next request tries again.

        Returns:
            The run's id, and whether it was begun by an earlier request.

        Raises:
            InvalidKeyError: the key is empty, too long, or not plain ASCII.
            KeyReusedError: the key was used for another request.
            FirstRequestAbortedError: the beginning of the run was stopped, for example at the end of the process.
            Exception: any error of ``begin``.
        """
        if not _KEY.fullmatch(key):
            raise InvalidKeyError("an Idempotency-Key has 1 to 255 characters of printable ASCII without blanks")
        self._forget_old()
        known = self._intents.get((client, key))
        if known is not None:
            if known.asked != asked:
                raise KeyReusedError("this Idempotency-Key was used for another request: choose a new one for each")
            return await asyncio.shield(known.run_id), True
        intent = _Intent(asked, self._clock.monotonic_s(), asyncio.get_running_loop().create_future())
        self._intents[client, key] = intent
        beginning = asyncio.get_running_loop().create_task(self._begin((client, key), intent, begin))
        self._beginning.add(beginning)
        beginning.add_done_callback(self._beginning.discard)
        return await asyncio.shield(intent.run_id), False

    async def _begin(self, name: tuple[str, str], intent: _Intent, begin: Callable[[], Awaitable[str]]) -> None:
        try:
            intent.run_id.set_result(await begin())
        except BaseException as error:
            if self._intents.get(name) is intent:
                del self._intents[name]
            told = (
                error
                if isinstance(error, Exception)
                else FirstRequestAbortedError("the outcome of the first request is unknown: list the runs to find out")
            )
            intent.run_id.set_exception(told)
            intent.run_id.exception()  # retrieved, so that asyncio does not warn if the caller was cancelled
            if told is not error:
                raise

    def _forget_old(self) -> None:
        oldest_s = self._clock.monotonic_s() - KEPT_S
        while self._intents:
            intent = next(iter(self._intents.values()))
            if len(self._intents) < KEYS_MAX and intent.since_s > oldest_s:
                return
            self._intents.popitem(last=False)
