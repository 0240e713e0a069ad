"""What the metadata store refuses to this process, for example because of an ACL.

Only an operator can change a refusal. Until then, the caller repeats the request after a pause, other work continues,
and the status of the process contains the reasons.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from bookie.model.errors import PermanentError
from bookie.runtime.clock import Clock

_log = logging.getLogger(__name__)

STORE_PAUSE_S: Final = 1.0
"""The pause after the store did not answer."""
REFUSED_PAUSE_S_MAX: Final = 60.0
"""The longest pause after the store refused a request. Pauses start at ``STORE_PAUSE_S`` and double."""


class StoreRefusals:
    """The refused requests of one worker, by the data that they concern."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._reasons: Mapping[str, str] = {}

    @property
    def reasons(self) -> Mapping[str, str]:
        """The reason of each refusal, by its data. Safe to read in any thread: it is replaced and never changed."""
        return self._reasons

    async def pause(self, what: str, error: PermanentError, pause_s: float) -> None:
        """Record that ``what`` was refused, and pause before the caller repeats the request."""
        self._reasons = {**self._reasons, what: str(error)}
        _log.error(
            "the metadata store refused a request, trying again",
            extra={"what": what, "error": str(error), "in_s": pause_s},
        )
        await self._clock.sleep(pause_s)

    def clear(self, what: str) -> bool:
        """Forget the refusal of ``what``, because a request succeeded. Return whether there was one."""
        if what not in self._reasons:
            return False
        self._reasons = {other: why for other, why in self._reasons.items() if other != what}
        return True
