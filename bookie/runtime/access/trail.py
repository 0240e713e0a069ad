"""The audit log: one record for each request to change something, including refused requests.

Requests that only the rate limit refused are not recorded. The logger is ``bkheal.audit``, so that the records can go
to a separate destination. Records contain names, never tokens.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from bookie.runtime.access.tokens import ANONYMOUS

_log: Final = logging.getLogger("bkheal.audit")


@dataclass(slots=True)
class RequestTrail:
    """The facts known so far about one changing request."""

    api: str
    """``http`` or ``grpc`` of an auditor, or ``bookie``."""
    action: str
    address: str
    who: str = ANONYMOUS
    check: str = ""
    """Kind of the run."""
    run_id: str = ""
    detail: str = ""
    """Further arguments of the request, such as the new delay."""

    def record(self, outcome: str, *, is_refused: bool) -> None:
        """Write the record. Call this once."""
        fields = {
            "api": self.api,
            "action": self.action,
            "who": self.who,
            "address": self.address,
            "check": self.check,
            "run_id": self.run_id,
            "detail": self.detail,
            "outcome": outcome,
        }
        level = logging.WARNING if is_refused else logging.INFO
        _log.log(level, "changing request", extra={name: value for name, value in fields.items() if value})
