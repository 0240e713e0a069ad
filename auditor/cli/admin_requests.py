"""Requests of commands to the admin APIs of other programs: Pulsar's, and that of a bookie.

The token goes to the given address, and otherwise only to permitted targets of redirects: to the same request at
another address, never from https to http, and with a token never unencrypted to another machine. Pulsar's brokers
redirect to the broker of a topic. Each request has one deadline for all its redirects, and a bounded answer. No error
contains the token, even if the server's answer contains it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urljoin, urlsplit, urlunsplit

from auditor.cli.audit.remote import RemoteSettings, base_url, tls_context
from bookie.model.errors import BkhealError, ConflictError, OutcomeUnknownError, PermanentError, TransientError
from bookie.model.hosts import is_host
from bookie.runtime.connection_problem import connection_problem
from bookie.runtime.human import printable
from bookie.runtime.listening import is_loopback

if TYPE_CHECKING:
    import httpx

REDIRECTS_MAX: Final = 5
ANSWER_BYTES_MAX: Final = 64 << 10
"""Size limit of an answer: errors have one sentence, other answers a few fields."""
_ANSWER_CHARS_MAX: Final = 300
"""Largest number of characters of an answer that an error contains."""
_TRY_LATER: Final = frozenset({408, 425, 429, 500, 502, 503, 504})


class AdminUnavailableError(TransientError):
    """No request was sent, or the server answered that it cannot carry it out now."""


class AdminOutcomeUnknownError(OutcomeUnknownError):
    """There was no complete answer in time; the request may have taken effect."""


class AdminConflictError(ConflictError):
    """The state of the server does not permit the request now."""


class AdminRefusedError(PermanentError):
    """The request was refused, or the server is not the intended one."""


class AdminLoginError(AdminRefusedError):
    """The server requires a token, or a different one. It would refuse every other request as well."""


@dataclass(frozen=True, slots=True)
class AdminAnswer:
    """The answer of a server."""

    url: str
    """The address that answered, without a query."""
    status: int
    said: str
    """The reason that it contains, in a form for a sentence; empty if there is none."""
    document: Mapping[str, Any] | None
    """The body; None if it is not a JSON object."""
    is_list: bool = False
    """Whether the body is a JSON array."""

    def error(self, what: str) -> BkhealError:
        """Return the error for this unexpected answer; ``what`` names the operation that was not carried out."""
        text = f"{what}: {self.url} answered {self.status}{f': {self.said}' if self.said else ''}"
        if self.status == 401:
            return AdminLoginError(text)
        if self.status == 409:
            return AdminConflictError(text)
        if self.status in _TRY_LATER:
            return AdminUnavailableError(text)
        if self.status < 300:
            return AdminRefusedError(f"{text}; this is not the answer of the API: is the address right?")
        return AdminRefusedError(text)


class AdminClient:
    """A client of one server, used as an asynchronous context manager."""

    def __init__(self, settings: RemoteSettings) -> None:
        """Read the TLS files; nothing is sent.

        Raises:
            ConfigurationError: the URL or the token is invalid, a file cannot be used, or the token would be sent in
                the clear.
        """
        self._token = settings.token
        self._timeout_s = settings.timeout_s
        self.base = base_url(settings)
        """The address without a user name."""
        self._tls = tls_context(settings, "https:")  # even for http, because a redirect may lead to https
        self._http: httpx.AsyncClient | None = None

    async def __aenter__(self) -> AdminClient:
        import httpx  # takes a tenth of a second, and only these commands need it

        self._http = httpx.AsyncClient(verify=self._tls, timeout=self._timeout_s, trust_env=False)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._http is not None:
            await self._http.aclose()

    async def ask(self, method: str, path: str, what: str, body: Mapping[str, Any] | None = None) -> AdminAnswer:
        """Send a request, and return the answer; its status may be any except a redirect.

        Args:
            method: of HTTP.
            path: below the address, encoded.
            what: the operation that was not carried out; the beginning of an error's sentence.
            body: a JSON document.

        Raises:
            AdminUnavailableError: no connection; no request was sent.
            AdminOutcomeUnknownError: no complete answer.
            AdminRefusedError: a redirect that is not followed, or too large an answer.
        """
        import httpx

        url = self.base + path
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._follow(method, url, path, what, body)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise AdminUnavailableError(
                f"{what}: no answer from {url}: {self._clean(connection_problem(error))}"
            ) from None
        except (TimeoutError, httpx.TimeoutException):
            raise AdminOutcomeUnknownError(f"{what}: no answer from {url} within {self._timeout_s:g} s") from None
        except httpx.InvalidURL:
            raise AdminRefusedError(
                f"{what}: {url} redirects to what is not an address; this is not followed"
            ) from None
        except httpx.RequestError as error:
            said = self._clean(connection_problem(error))
            raise AdminOutcomeUnknownError(f"{what}: no complete answer from {url}: {said}") from None

    async def _follow(self, method: str, url: str, path: str, what: str, body: Mapping[str, Any] | None) -> AdminAnswer:
        assert self._http is not None, "enter the client first"
        # The bound counts received bytes, and a compressed answer could become much larger.
        headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        for _ in range(REDIRECTS_MAX + 1):
            async with self._http.stream(method, url, headers=headers, json=body) as response:
                if response.status_code not in (307, 308):
                    return self._understand(_shown(url), response.status_code, await _read(response, url, what))
                try:
                    url = redirected(url, response.headers.get("Location", ""), path, has_token=self._token is not None)
                except ValueError as error:
                    text = f"{what}: {_shown(url)} redirects {error}; this is not followed"
                    raise AdminRefusedError(self._clean(text, _ANSWER_CHARS_MAX * 3)) from None
        raise AdminRefusedError(f"{what}: {self.base}{path} redirects more than {REDIRECTS_MAX} times")

    def _understand(self, url: str, status: int, data: bytes) -> AdminAnswer:
        try:
            found = json.loads(data)
        except (ValueError, RecursionError):
            found = None
        document = found if isinstance(found, dict) else None
        said = str((document or {}).get("reason") or "") if document else data.decode(errors="replace")
        return AdminAnswer(url, status, self._clean(said), document, isinstance(found, list))

    def _clean(self, text: str, length: int = _ANSWER_CHARS_MAX) -> str:
        """Return a foreign text in one line, with a bounded length and without the token."""
        if self._token:
            text = text.replace(self._token, "[token]")
        return printable(" ".join(text.split()))[:length]


def redirected(at: str, location: str, path: str, *, has_token: bool) -> str:
    """Return the target address of a redirect (pure).

    Args:
        at: the redirecting address.
        location: the target in the redirect.
        path: of the request.
        has_token: whether the request has a token.

    Raises:
        ValueError: it must not be followed; the message is the end of a sentence about ``at``.
    """
    if not location:
        raise ValueError("without an address")
    shown = repr(printable(location)[:_ANSWER_CHARS_MAX])
    try:
        parts = urlsplit(urljoin(at, location))
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise ValueError(f"to {shown}, which is not an address") from error
    if parts.scheme not in ("http", "https") or not is_host(host) or port == 0 or not location.isascii():
        raise ValueError(f"to {shown}, which is not an address")
    if urlsplit(at).scheme == "https" and parts.scheme != "https":
        raise ValueError(f"from https to {shown}")
    if has_token and parts.scheme == "http" and not is_loopback(host):
        raise ValueError(f"to {shown}, where the token would travel in the clear")
    if not parts.path.endswith(path):
        raise ValueError(f"to {shown}, which is another request")
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, parts.query, ""))


async def _read(response: httpx.Response, url: str, what: str) -> bytes:
    data = bytearray()
    async for chunk in response.aiter_raw():
        data += chunk
        if len(data) > ANSWER_BYTES_MAX:
            raise AdminRefusedError(
                f"{what}: {_shown(url)} answered {response.status_code} with more than {ANSWER_BYTES_MAX} bytes: "
                "is the address right?"
            )
    return bytes(data)


def _shown(url: str) -> str:
    return url.partition("?")[0]
