"""Fetches reports that are missing here from another running auditor.

If each auditor has its own directory, the reports of a former leader are only in its directory. So an auditor that does
not have a report requests it from the other candidates of the election, with the authorization of its own caller, and
returns their answer.

The invariant: an auditor only requests paths that it would serve itself, and only from candidates with the port of this
service. With TLS, the candidate's certificate must be the same as this auditor's (all auditors of a service share one).
Another kind of candidate, such as Apache's auditor, has another port and is not asked. A request from another auditor
is answered from the local directory only (``auditor.api.peer_port``), so requests cannot form a loop. Concurrent
requests, peers, bytes and time are bounded. If a candidate does not answer and no other one has the report, it is
unknown whether the report exists (docs/decisions/0061-auditors-ask-each-other-for-reports.md).
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import ssl
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

import aiohttp
from typing_extensions import override

from auditor.api.peer_port import ASKED_BY_AUDITOR_HEADER, PeerAnswer, PeerReports, PeersUnknownError
from auditor.service.leader_ports import leader_host
from bookie.model.errors import OutcomeUnknownError, PermanentError, TransientError

_log = logging.getLogger(__name__)

PEERS_MAX: Final = 4
"""Auditors asked for one request; a service has two or three auditors."""
FETCHES_MAX: Final = 2
"""Concurrent requests, each with up to ``BYTES_MAX`` in memory; a further one is refused."""
BYTES_MAX: Final = 32 * 1024 * 1024
"""Size limit of one file. A page has some hundred kilobytes, a part of the findings of a large loss some megabytes."""
PEER_S: Final = 8.0
"""Deadline for the whole answer of one peer."""
DEADLINE_S: Final = 20.0
"""Deadline for the answers of all peers; shorter than the deadline of a request to this auditor."""
_CHUNK_BYTES: Final = 64 * 1024


class ElectionPeerReports(PeerReports):
    """The candidates of the election with the port of this service."""

    def __init__(
        self,
        candidates: Callable[[], Awaitable[Sequence[str]]],
        own_name: str,
        http_port: int,
        cert: Path | None,
    ) -> None:
        """Store the arguments.

        Args:
            candidates: returns the names in all votes; raises errors of the store.
            own_name: the name in this auditor's vote.
            http_port: of the API of every auditor of this service.
            cert: PEM file of the certificate of this auditor's API; None: plain HTTP.
        """
        self._candidates = candidates
        self._own_name = own_name
        self._http_port = http_port
        self._cert = cert
        self._under_way = 0

    @override
    async def get(self, path: str, authorization: str | None) -> PeerAnswer | None:
        if self._under_way >= FETCHES_MAX:
            raise PeersUnknownError("too many requests to other auditors are in progress")
        self._under_way += 1
        try:
            async with asyncio.timeout(DEADLINE_S):
                return await self._first(path, authorization)
        except (OSError, ValueError, TransientError, OutcomeUnknownError, PermanentError) as error:
            if not isinstance(error, PeersUnknownError):
                _log.info("no report was requested from other auditors", extra={"path": path, "reason": str(error)})
            raise PeersUnknownError("the other auditors of this service do not answer") from error
        finally:
            self._under_way -= 1

    async def _first(self, path: str, authorization: str | None) -> PeerAnswer | None:
        hosts = [leader_host(name, self._http_port) for name in await self._candidates() if name != self._own_name]
        peers = list(dict.fromkeys(filter(None, hosts)))[:PEERS_MAX]
        if not peers:
            return None
        headers = {ASKED_BY_AUDITOR_HEADER: "1"} | ({} if authorization is None else {"Authorization": authorization})
        trust: aiohttp.Fingerprint | bool = True
        if self._cert is not None:
            trust = aiohttp.Fingerprint(await asyncio.to_thread(_fingerprint, self._cert))
        timeout = aiohttp.ClientTimeout(total=PEER_S)
        is_answered = True
        async with aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()) as session:
            for host in peers:
                try:
                    answer = await self._asked(session, self._url(host, path), headers, trust)
                except (aiohttp.ClientError, OSError) as error:
                    _log.info("another auditor did not answer", extra={"auditor": host, "reason": str(error)})
                    is_answered = False
                    continue
                if answer is not None:
                    return answer
        if not is_answered:
            raise PeersUnknownError("another auditor of this service does not answer")
        return None

    def _url(self, host: str, path: str) -> str:
        scheme = "http" if self._cert is None else "https"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self._http_port}{path}"

    async def _asked(
        self,
        session: aiohttp.ClientSession,
        url: str,
        headers: dict[str, str],
        trust: aiohttp.Fingerprint | bool,
    ) -> PeerAnswer | None:
        async with session.get(url, headers=headers, ssl=trust, allow_redirects=False) as response:
            if response.status == 302:
                return PeerAnswer(location=response.headers.get("Location", ""))
            if response.status >= 500:
                raise aiohttp.ClientError(f"it answered {response.status}")
            if response.status != 200:
                return None
            body = bytearray()
            async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
                body += chunk
                if len(body) > BYTES_MAX:
                    _log.warning("file of a report is too large to be passed on", extra={"url": url})
                    return None
            return PeerAnswer(bytes(body))


def _fingerprint(cert: Path) -> bytes:
    """Return the SHA-256 of the first certificate in a PEM file.

    Raises:
        OSError, ValueError: the file has no readable certificate.
    """
    text = cert.read_text(encoding="ascii")
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    first = text[text.index(begin) : text.index(end) + len(end)]
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(first)).digest()
