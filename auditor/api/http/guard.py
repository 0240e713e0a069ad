"""The common handling of every HTTP request: limits, identity, deadline, error documents, headers, audit log."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Awaitable, Callable
from typing import Final
from urllib.parse import SplitResult, urlsplit

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong

from auditor.api.access.proxies import TrustedProxies
from auditor.api.http.pages import problem_page
from auditor.api.http.routes import HTML, Call, Route, changing
from auditor.api.problems import (
    PROBLEM_TYPE,
    CrossSiteError,
    OverloadedError,
    Problem,
    http_problem,
    problem_of,
)
from auditor.api.settings import ApiSettings
from bookie.runtime.access.access import Access, Principal, bearer_token
from bookie.runtime.access.tokens import ANONYMOUS
from bookie.runtime.access.trail import RequestTrail
from bookie.runtime.listening import is_loopback

_log = logging.getLogger(__name__)

_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}
_POLICY: Final = "default-src 'none'; frame-ancestors 'none'"
_HSTS: Final = "max-age=31536000"
_TOO_MANY_REQUESTS_STATUS: Final = 429
"""The status that is not written to the audit log, because otherwise a client could flood the log."""
_SAME_SITE: Final = ("same-origin", "none")
"""``none``: a person entered the address, or the request is not from a page."""


class Guard:
    """Wraps the handlers of one API."""

    def __init__(self, settings: ApiSettings, access: Access) -> None:
        self._settings = settings
        self._access = access
        self._proxies = TrustedProxies(settings.trusted_proxies)
        self._in_flight = 0
        self._guards_names = is_loopback(settings.http_host)

    def wrap(self, route: Route) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        """Return the handler of a route in the form required by the HTTP library; it never raises."""

        async def handle(request: web.Request) -> web.StreamResponse:
            trail = RequestTrail("http", route.operation, self._proxies.client(request.remote, request.headers))
            if route.role is None:
                return await self._answer(route, Call(request, Principal(ANONYMOUS, trail.address), trail))
            response = await self._admitted(route, request, trail)
            if route.is_changing and response.status != _TOO_MANY_REQUESTS_STATUS:
                trail.record(str(response.status), is_refused=response.status >= 400)
            return response

        return handle

    async def prepare(self, request: web.Request, response: web.StreamResponse) -> None:
        """Set the headers that every answer must have. A signal of the HTTP library."""
        self._set_headers(response)
        if request.content.exception() is not None:
            response.headers["Connection"] = "close"  # the library closes it, because it cannot read the body

    def unreadable(self, request: web.BaseRequest, error: HttpProcessingError) -> web.Response:
        """Return the answer to a request that the HTTP library could not read."""
        is_line_too_long = isinstance(error, LineTooLong) and error.args[1] == self._settings.line_bytes_max
        response = _respond(request, http_problem(414 if is_line_too_long else 400, error.message, request.path))
        self._set_headers(response)
        return response

    def _set_headers(self, response: web.StreamResponse) -> None:
        for name, value in _HEADERS.items():
            response.headers.setdefault(name, value)
        response.headers.setdefault("Content-Security-Policy", _POLICY)
        response.headers.setdefault("Cache-Control", "no-store")
        response.headers["Server"] = "bkheal"
        if self._settings.tls is not None:
            response.headers["Strict-Transport-Security"] = _HSTS

    @web.middleware
    async def catch(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Turn the HTTP library's own refusals into problem documents."""
        try:
            return await handler(request)
        except web.HTTPMethodNotAllowed as error:
            allowed = ", ".join(sorted(error.allowed_methods))
            return _respond(request, http_problem(error.status, error.reason, request.path, allowed))
        except web.HTTPException as error:
            return _respond(request, http_problem(error.status, error.reason, request.path))

    async def _admitted(self, route: Route, request: web.Request, trail: RequestTrail) -> web.StreamResponse:
        assert route.role is not None
        if route.is_limited and self._in_flight >= self._settings.in_flight_max:
            return _respond(
                request,
                problem_of(
                    OverloadedError("this process already handles the largest number of requests; try again later")
                ),
            )
        self._in_flight += route.is_limited
        try:
            if changing(route):
                refuse_cross_site(request, self._proxies.host(request.remote, request.host, request.headers))
            token = bearer_token(request.headers.get("Authorization"))
            who = self._access.admit(trail.address, token, route.role, is_limited=route.is_limited)
            trail.who = who.name
            if who.is_anonymous and self._guards_names:
                refuse_foreign_name(request.host, self._settings.allowed_hosts)
            return await self._answer(route, Call(request, who, trail))
        except Exception as error:  # noqa: BLE001  # a request's boundary; the answer has the part its caller may see
            return _respond(request, _problem_for(route, error))
        finally:
            self._in_flight -= route.is_limited

    async def _answer(self, route: Route, call: Call) -> web.StreamResponse:
        try:
            async with asyncio.timeout(self._settings.request_deadline_s):
                return await route.handler(call)
        except web.HTTPException:
            raise
        except Exception as error:  # noqa: BLE001  # as above
            return _respond(call.request, _problem_for(route, error))


def refuse_cross_site(request: web.BaseRequest, host: str) -> None:
    """Refuse a request that a browser sends for another site's page.

    Browsers send ``Sec-Fetch-Site``, and older ones an ``Origin`` that differs from ``host``, the requested name. Other
    programs send neither.

    Raises:
        CrossSiteError: it is such a request.
    """
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None and site not in _SAME_SITE:
        raise CrossSiteError("the request comes from a page of another site; open this service's own page instead")
    origin = request.headers.get("Origin")
    if origin is not None and _parsed(origin).netloc.lower() != host.lower():
        raise CrossSiteError("the Origin is not this service; open this service's own page instead")


def refuse_foreign_name(host: str, allowed: tuple[str, ...]) -> None:
    """Refuse a foreign host name. Otherwise a page whose name resolves to this machine would count as the same site.

    Raises:
        CrossSiteError: it is neither a name of this machine nor one of ``allowed``.
    """
    name = (_parsed(f"//{host}").hostname or "").lower()
    if name == "localhost" or name in allowed:
        return
    try:
        if ipaddress.ip_address(name).is_loopback:
            return
    except ValueError:
        pass
    raise CrossSiteError(
        "this service accepts only local names without a token: address it as localhost, or send a token"
    )


def _parsed(url: str) -> SplitResult:
    """Return the parts of a client's URL. Raise CrossSiteError if it is not a URL, such as ``http://[``."""
    try:
        return urlsplit(url)
    except ValueError as error:
        raise CrossSiteError(f"a header names no host: {error}") from error


def _problem_for(route: Route, error: Exception) -> Problem:
    if isinstance(error, TimeoutError):
        detail = "the request took too long" + ("; it may still have taken effect" if changing(route) else "")
        return Problem(504, "deadline", "The deadline passed", detail)
    if isinstance(error, web.HTTPException):
        return http_problem(error.status, error.reason, route.path)
    problem = problem_of(error)
    if problem.status == 500:
        _log.error("request failed", extra={"operation": route.operation}, exc_info=error)
    return problem


def _respond(request: web.BaseRequest, problem: Problem) -> web.Response:
    """Return a problem document, or a page if a browser opened the address: it accepts pages, and programs do not."""
    if request.method == "GET" and HTML in request.headers.get("Accept", ""):
        page = problem_page(problem, request.path)
        headers = {**problem.headers, "Content-Security-Policy": page.policy}
        return web.Response(text=page.html, status=problem.status, headers=headers, content_type=HTML)
    return web.json_response(
        problem.document(request.path), status=problem.status, headers=problem.headers, content_type=PROBLEM_TYPE
    )
