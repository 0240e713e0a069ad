"""The audit log: one record for every request that would change something, also for those that were refused.

Except for those refused for their number alone. Logger ``bkheal.audit``, so that it can be sent elsewhere. Records hold
names, never tokens.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from bookie.runtime.access.tokens import ANONYMOUS

_log: Final = logging.getLogger("bkheal.audit")


@dataclass(slots=True)
class Trail:
    """What is known so far about one changing request."""

    face: str
    """``http`` or ``grpc``."""
    action: str
    address: str
    who: str = ANONYMOUS
    check: str = ""
    """Kind of the run."""
    run_id: str = ""
    detail: str = ""
    """What else was asked for, such as the new delay."""

    def record(self, outcome: str, *, is_refused: bool) -> None:
        """Write the record. To be called once."""
        fields = {
            "face": self.face,
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
