"""Port: files of reports that another auditor of the same service has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

ASKED_BY_AUDITOR: Final = "Bkheal-Asked-By-Auditor"
"""A header of a request that another auditor makes: it is answered from the own directory alone, so none goes round."""


@dataclass(frozen=True, slots=True)
class PeerAnswer:
    """What another auditor sent."""

    body: bytes = b""
    location: str = ""
    """Where it leads to instead of a body; not checked."""


class PeerReports(Protocol):
    """The other auditors."""

    async def get(self, path: str, authorization: str | None) -> PeerAnswer | None:
        """Return the first answer of another auditor that has what is at ``path``; None: none has it, or none answers.

        Args:
            path: of the request, with its query.
            authorization: the header of the caller, which the other auditor judges as its own.
        """
        ...
