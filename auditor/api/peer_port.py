"""Port: report files of the other auditors of the same service."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from bookie.model.errors import TransientError

ASKED_BY_AUDITOR_HEADER: Final = "Bkheal-Asked-By-Auditor"
"""A header of requests from another auditor. They are answered only from the local directory, so they cannot loop."""


@dataclass(frozen=True, slots=True)
class PeerAnswer:
    """Another auditor's answer."""

    body: bytes = b""
    location: str = ""
    """The target of a redirect instead of a body; not checked."""


class PeersUnknownError(TransientError):
    """No other auditor returned the file, and at least one did not answer: it may have the file."""


class PeerReports(Protocol):
    """The other auditors."""

    async def get(self, path: str, authorization: str | None) -> PeerAnswer | None:
        """Return the first answer of another auditor that has a file at ``path``; None: none has it.

        Args:
            path: of the request, with its query.
            authorization: the header of the caller, which the other auditor checks itself.

        Raises:
            PeersUnknownError: none returned the file, and not all of them answered.
        """
        ...
